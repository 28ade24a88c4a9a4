"""What every test may ask for. Databases, processes and the browser each have a file of their own."""

pytest_plugins = ["tests.cluster", "tests.processes", "tests.chromium"]
