from typing import Any

import pytest

from tests.protocol.stage import VERBS, add_job_type, claim_one, enqueue, let_leases_run_out, make, row
from workitems import protocol
from workitems.errors import OwnershipLost
from workitems.states import QuarantineReason, State


@pytest.mark.parametrize("verb", VERBS)
def test_a_worker_that_slept_through_a_takeover_can_change_nothing(
    verb: str, database: Any, superuser: Any, tenants: tuple[str, str]
) -> None:
    add_job_type()
    enqueue(tenants[0])
    sleeper = claim_one("sleeper")
    let_leases_run_out(superuser)
    claim_one("winner")
    before = row(tenants[0])
    with pytest.raises(OwnershipLost):
        VERBS[verb](sleeper)
    assert row(tenants[0]) == before


BATCHES = {
    "heartbeat": lambda claims: protocol.heartbeat_many([(c, 1) for c in claims]),
    "complete": lambda claims: protocol.complete_many([(c, "done") for c in claims]),
    "fail": lambda claims: protocol.fail_many([(c, "refused") for c in claims]),
    "park": lambda claims: protocol.park_many([(c, "timeout") for c in claims]),
    "quarantine": lambda claims: protocol.quarantine_many([(c, QuarantineReason.UNPARSEABLE) for c in claims]),
    "release": lambda claims: [state is not None for state in protocol.release_many(claims)],
}


@pytest.mark.parametrize("verb", BATCHES)
def test_in_a_batch_only_the_stale_claim_is_refused_and_the_answers_keep_their_places(
    verb: str, database: Any, superuser: Any, tenants: tuple[str, str]
) -> None:
    add_job_type()
    for name in ("z", "m", "a"):
        enqueue(tenants[0], name)
    batch = protocol.claim(job_type="test.job", worker="w", limit=3)
    superuser.execute(
        "UPDATE work_item SET lease_expires_at = clock_timestamp() - interval '1 second' WHERE operation_id = 'm'"
    )
    winner = claim_one("winner")
    taken_over = row(tenants[0], "m")
    assert winner.operation_id == "m"
    assert BATCHES[verb](batch) == [c.operation_id != "m" for c in batch]
    assert row(tenants[0], "m") == taken_over


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("state", list(State))
def test_every_verb_of_a_worker_works_from_claimed_and_from_no_other_state(
    state: State, verb: str, database: Any, tenants: tuple[str, str]
) -> None:
    add_job_type()
    claim = make(state, tenants[0])
    before = row(tenants[0])
    if state is State.CLAIMED:
        VERBS[verb](claim)
        return
    with pytest.raises(OwnershipLost):
        VERBS[verb](claim)
    assert row(tenants[0]) == before


@pytest.mark.parametrize("verb", ["release", "quarantine"])
def test_what_has_begun_is_neither_released_nor_quarantined(verb: str, database: Any, tenants: tuple[str, str]) -> None:
    add_job_type()
    enqueue(tenants[0])
    claim = claim_one()
    protocol.begin(claim)
    before = row(tenants[0])
    with pytest.raises(OwnershipLost):
        VERBS[verb](claim)
    assert row(tenants[0]) == before


def test_the_same_fence_under_another_owners_name_changes_nothing(database: Any, tenants: tuple[str, str]) -> None:
    add_job_type()
    enqueue(tenants[0])
    claim = claim_one("host/1/aaaa")
    impostor = protocol.Claim(**{name: getattr(claim, name) for name in claim.__slots__} | {"worker": "host/2/bbbb"})
    for verb in VERBS.values():
        with pytest.raises(OwnershipLost):
            verb(impostor)
    assert row(tenants[0])["state"] == "claimed"


def test_equal_operation_ids_of_two_tenants_never_touch_each_other(database: Any, tenants: tuple[str, str]) -> None:
    add_job_type()
    for tenant in tenants:
        enqueue(tenant, "op-1")
    first, second = protocol.claim(job_type="test.job", worker="w", limit=2)
    untouched = row(second.tenant_id)
    protocol.fail(first, outcome_code="refused")
    assert row(second.tenant_id) == untouched
    assert row(first.tenant_id)["op_digest"] != untouched["op_digest"]
