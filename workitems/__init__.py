"""The work: its table, its protocol, its job types, and what owners look at. Knows no HTTP and no templates."""
