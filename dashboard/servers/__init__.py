"""
PostgreSQL and Valkey from their wheels, for the demo and the tests: loopback only, owned by the process that starts them.

A child started here has a session of its own, so that Ctrl-C reaches the starter first, and on Linux the kernel ends it
when the starting thread ends, however that happens. Start from the main thread.
"""

from dashboard.servers.postgres import SUPERUSER, Postgres, erase_postgres, start_postgres
from dashboard.servers.processes import ServerFailed, end, free_port, port_is_taken, spawn
from dashboard.servers.valkey import Valkey, start_valkey

__all__ = [
    "SUPERUSER",
    "Postgres",
    "ServerFailed",
    "Valkey",
    "end",
    "erase_postgres",
    "free_port",
    "port_is_taken",
    "spawn",
    "start_postgres",
    "start_valkey",
]
