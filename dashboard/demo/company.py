"""The demo's company: its tenants, its people, and where its programs find the outside world."""

import os
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Tenant:
    """A tenant by its raw id, which no page shows, and its label, which pages do."""

    tenant_id: str
    label: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Person:
    """A demo user: a role in some tenants, or in all of them where `tenants` is empty."""

    username: str
    role: str
    tenants: tuple[str, ...] = ()


TENANTS = (
    Tenant(tenant_id="acme-eu", label="Amber"),
    Tenant(tenant_id="borealis-us", label="Birch"),
    Tenant(tenant_id="cygnus-apac", label="Cedar"),
)
PEOPLE = (
    Person(username="vera", role="viewer", tenants=("acme-eu",)),
    Person(username="otto", role="operator", tenants=("acme-eu", "borealis-us")),
    Person(username="anna", role="approver", tenants=("acme-eu", "borealis-us")),
    Person(username="udo", role="auditor", tenants=("acme-eu", "borealis-us", "cygnus-apac")),
    Person(username="omar", role="operator"),
)
# Shell names of the people in .demo/env: FENCEWATCH_DEMO_<ROLE>_USER and _PASSWORD.
SHELL_NAMES = {"vera": "VIEWER", "otto": "OPERATOR", "anna": "APPROVER", "udo": "AUDITOR", "omar": "ALL_TENANTS"}

LEDGER_TABLE = "ledger"
REGION = "eu-central-1"
ANYBODY = "demo"  # the ledger's store asks for keys and takes any


def address_of(name: str) -> str:
    """Where `payments`, `gateway` or `ledger` listens; the demo tells its programs by the environment."""
    return os.environ[f"FENCEWATCH_DEMO_{name.upper()}_URL"]
