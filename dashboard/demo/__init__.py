"""The demo's company, its outside world and its faults. Imported by nothing else; no part of a production install."""
