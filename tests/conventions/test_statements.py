"""The rules of every statement that changes an item, read from the SQL files themselves."""

import re
from pathlib import Path

import pytest

from workitems.protocol.statements import statements

ROOT = Path(__file__).parents[2]
FILES = sorted(path for path in (ROOT / "workitems").rglob("*.sql") if "-- name:" in path.read_text())
NAMED = [(path, name, body) for path in FILES for name, body in statements(path).items()]
CHANGING = re.compile(r"^\s*(UPDATE|DELETE FROM)\s+work_item\b", re.MULTILINE)
FUNCTION = re.compile(r"CREATE OR REPLACE FUNCTION (fencewatch\.\w+).*?\$\$(.*?)\$\$", re.DOTALL)


def code_of(text: str) -> str:
    return "\n".join(line.split("--")[0] for line in text.splitlines())


@pytest.mark.parametrize(("path", "name", "body"), NAMED, ids=[f"{p.name}:{n}" for p, n, _ in NAMED])
def test_a_statement_that_changes_an_item_names_its_tenant_and_the_fence_or_the_state_it_saw(
    path: Path, name: str, body: str
) -> None:
    code = code_of(body)
    if not CHANGING.search(code):
        return
    where = code[code.rindex("WHERE") :] if name not in {"claim", "take_over"} else code
    assert re.search(r"\bstate( \|\| '')?\s*=\s*'", where), (
        f"{name} in {path.name} does not name the state that it acts on"
    )
    locked = "FOR UPDATE SKIP LOCKED" in code and "ctid = ANY" in code
    assert locked or ("tenant_id =" in where and "fence =" in where), (
        f"{name} in {path.name} names neither tenant and fence nor rows it has locked"
    )


@pytest.mark.parametrize(("path", "name", "body"), NAMED, ids=[f"{p.name}:{n}" for p, n, _ in NAMED])
def test_a_statement_says_what_it_is_for_and_what_zero_rows_mean(path: Path, name: str, body: str) -> None:
    comment = " ".join(line[2:].strip() for line in body.splitlines() if line.startswith("--"))
    assert comment, f"{name} in {path.name} has no sentence of purpose"
    if CHANGING.search(code_of(body)) or "FOR UPDATE" in body:
        assert re.search(r"Zero rows|does not come back", comment), (
            f"{name} in {path.name} does not say what zero rows mean"
        )


@pytest.mark.parametrize("path", sorted((ROOT / "workitems").rglob("*.sql")), ids=lambda path: path.name)
def test_time_is_compared_through_a_subselect_and_never_by_the_start_of_the_transaction(path: Path) -> None:
    for number, line in enumerate(code_of(path.read_text()).splitlines(), start=1):
        assert not re.search(r"\b(now|statement_timestamp|transaction_timestamp)\(\)|CURRENT_TIMESTAMP", line), (
            f"{path.name}:{number} uses the start of the transaction"
        )


def test_every_function_with_its_definers_rights_pins_its_search_path() -> None:
    for path in (ROOT / "workitems").rglob("*.sql"):
        for statement in re.findall(r"CREATE OR REPLACE FUNCTION.*?AS \$\$", path.read_text(), re.DOTALL):
            if "SECURITY DEFINER" in statement:
                assert "SET search_path = pg_catalog, pg_temp" in statement, f"{path.name}: {statement.splitlines()[0]}"


def test_every_statement_of_the_protocol_has_a_verb_of_the_same_name() -> None:
    from workitems import protocol
    from workitems.protocol.statements import PROTOCOL

    for name in statements(PROTOCOL):
        assert name == "take_over" or hasattr(protocol, name), f"{name} is a statement without a function of its name"
