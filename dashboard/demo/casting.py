"""Which programs the demo runs, and what each of them is told by its environment: no more than it needs."""

import os
import shlex
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from dashboard.demo.company import SHELL_NAMES
from dashboard.demo.crew import Program
from dashboard.demo.keys import Keys
from dashboard.demo.world.records import Records

DATABASE_VARIABLES = {
    "DATABASE_URL": "web",
    "ACCOUNTS_DATABASE_URL": "accounts",
    "WORKER_DATABASE_URL": "worker",
    "KEEPER_DATABASE_URL": "keeper",
    "OWNER_DATABASE_URL": "migrator",
}
OLD_WORKER_RESTS = 30.0  # seconds: what it held stalls meanwhile
CLERKS, PAYOUT_CLERKS = 5, 2


@dataclass(frozen=True, kw_only=True)
class Addresses:
    """Where everything listens in this run. `database` is the superuser's URL."""

    folder: Path
    url: str
    bind: str
    database: str
    broker: str
    payments: int
    gateway: int
    ledger: int

    @property
    def world(self) -> dict[str, int]:
        return {"payments": self.payments, "gateway": self.gateway, "ledger": self.ledger}

    def database_url(self, variable: str, *, kept: Keys) -> str:
        role = DATABASE_VARIABLES[variable]
        parts = urlsplit(self.database)
        return f"postgresql://fencewatch_{role}:{kept.roles[role]}@{parts.hostname}:{parts.port}{parts.path}"


@dataclass(frozen=True, kw_only=True)
class Programs:
    """The outside world, the product itself, and the company that uses and disturbs it; started in this order."""

    world: tuple[Program, ...]
    product: tuple[Program, ...]
    company: tuple[Program, ...]


def programs(addresses: Addresses, *, kept: Keys, records: Records) -> Programs:
    """Every program of the demo."""
    plain = _plain(addresses)
    outside = {
        f"FENCEWATCH_DEMO_{name.upper()}_URL": f"http://127.0.0.1:{port}" for name, port in addresses.world.items()
    }
    broker = {"CELERY_BROKER_URL": addresses.broker}
    works = plain | outside | broker | _databases(addresses, kept, "WORKER_DATABASE_URL", "KEEPER_DATABASE_URL")
    return Programs(
        world=(
            _server("payments", port=addresses.payments, record=records.payments, environment=plain),
            _server("gateway", port=addresses.gateway, record=records.gateway, environment=plain),
            _server("ledger", port=addresses.ledger, record=records.ledger, environment=plain),
        ),
        product=(
            Program(
                name="pages",
                arguments=("-m", "gunicorn", "--config", "deploy/gunicorn.py"),
                environment=plain
                | _pages(addresses, kept)
                | _databases(addresses, kept, "DATABASE_URL", "ACCOUNTS_DATABASE_URL"),
            ),
            _workers("workers", children=CLERKS, modules="dashboard.demo.jobs", environment=works),
            _workers("payout workers", children=PAYOUT_CLERKS, modules="dashboard.demo.payouts", environment=works),
            Program(
                name="beat",
                arguments=("-m", "celery", "--app", "dashboard.celery", "beat", "--loglevel", "WARNING"),
                environment=plain | broker,
            ),
        ),
        company=(
            Program(
                name="producer",
                arguments=("-m", "dashboard.demo.producer"),
                environment=plain | broker | _databases(addresses, kept, "WORKER_DATABASE_URL"),
            ),
            Program(
                name="old worker",
                arguments=("-m", "dashboard.demo.old_worker"),
                environment=plain | _databases(addresses, kept, "WORKER_DATABASE_URL"),
                rests=OLD_WORKER_RESTS,
            ),
            Program(
                name="faults",
                arguments=("-m", "dashboard.demo.faults"),
                environment=plain | outside | {"FENCEWATCH_SUPERUSER_URL": addresses.database},
            ),
        ),
    )


def seed_environment(addresses: Addresses, *, kept: Keys) -> dict[str, str]:
    """Every role's address, for the one program that sets the database up."""
    return {
        **_plain(addresses),
        **_pages(addresses, kept),
        **_databases(addresses, kept, *DATABASE_VARIABLES),
        "FENCEWATCH_SUPERUSER_URL": addresses.database,
        "FENCEWATCH_JOB_MODULES": "dashboard.demo.jobs,dashboard.demo.payouts",
        "FENCEWATCH_DEMO_LEDGER_URL": f"http://127.0.0.1:{addresses.ledger}",
    }


def shell_exports(addresses: Addresses, *, kept: Keys) -> str:
    """What people and scripts may `source` while the demo runs."""
    exported = {
        "FENCEWATCH_URL": addresses.url,
        **{variable: addresses.database_url(variable, kept=kept) for variable in DATABASE_VARIABLES},
        "CELERY_BROKER_URL": addresses.broker,
    }
    for username, shell_name in SHELL_NAMES.items():
        exported[f"FENCEWATCH_DEMO_{shell_name}_USER"] = username
        exported[f"FENCEWATCH_DEMO_{shell_name}_PASSWORD"] = kept.people[username]
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in exported.items())


def _plain(addresses: Addresses) -> dict[str, str]:
    """The caller's environment without what would configure Fencewatch or libpq, and the demo's own marks."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("FENCEWATCH_", "CELERY_", "PG", "AWS_", "DJANGO_"))
        and not name.endswith("DATABASE_URL")
    }
    return inherited | {
        "DJANGO_SETTINGS_MODULE": "dashboard.settings",
        "PYTHONUNBUFFERED": "1",
        "FENCEWATCH_DEMO": "1",
        "FENCEWATCH_DEMO_DIR": str(addresses.folder),
        "FENCEWATCH_DEMO_PID": str(os.getpid()),
        "FENCEWATCH_INSECURE_HTTP": "1",
        "FENCEWATCH_LOG_LEVEL": "WARNING",
    }


def _pages(addresses: Addresses, kept: Keys) -> dict[str, str]:
    return {
        "FENCEWATCH_SECRET_KEY": kept.secret_key,
        "FENCEWATCH_CONTEXT_KEY": kept.context_key,
        "FENCEWATCH_ALLOWED_HOSTS": "127.0.0.1,localhost",
        "FENCEWATCH_URL": addresses.url,
        "FENCEWATCH_BIND": addresses.bind,
        "FENCEWATCH_STATIC_ROOT": str(addresses.folder / "static"),
    }


def _databases(addresses: Addresses, kept: Keys, *variables: str) -> dict[str, str]:
    return {variable: addresses.database_url(variable, kept=kept) for variable in variables}


def _server(name: str, *, port: int, record: Path, environment: Mapping[str, str]) -> Program:
    module = f"dashboard.demo.world.{name}"
    return Program(
        name=name, arguments=("-m", module, "--port", str(port), "--record", str(record)), environment=environment
    )


def _workers(name: str, *, children: int, modules: str, environment: Mapping[str, str]) -> Program:
    options = ("--concurrency", str(children), "--without-gossip", "--without-mingle", "--loglevel", "WARNING")
    return Program(
        name=name,
        arguments=(
            "-m",
            "celery",
            "--app",
            "dashboard.celery",
            "worker",
            *options,
            "--hostname",
            f"{name.replace(' ', '-')}@%h",
        ),
        environment={**environment, "FENCEWATCH_JOB_MODULES": modules},
        # Not asked but killed when the demo is gone: its frozen children could not answer.
        ending=signal.SIGKILL,
    )
