"""The outside world: programs that know nothing of Fencewatch. None of them imports Django or workitems."""
