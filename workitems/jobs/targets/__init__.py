"""Targets: what performs the side effect, and how each of the four types keeps a stale worker or a repeat from doing harm."""
