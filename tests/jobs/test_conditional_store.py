"""Type B: the store refuses lower fences in the write itself, and a reconcile closes that door before it looks."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from moto.server import ThreadedMotoServer

from tests.jobs.servers import answer, hang_up, provider
from tests.jobs.stage import defined, enqueue, let_leases_run_out, make_due, notes, row, standing
from workitems import protocol
from workitems.errors import OwnershipLost
from workitems.jobs import Answer, JobType, Target, Work, did_not_happen, happened
from workitems.jobs.payloads import PostgresPayloads
from workitems.jobs.targets.conditional_store import conditional_put, dynamodb, raise_fence
from workitems.jobs.worker import Ended, Ran, run_one


@pytest.fixture(scope="module")
def store_url() -> Iterator[str]:
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


def client_of(url: str) -> Any:
    return dynamodb(region="eu-west-1", endpoint=url, access_key="test", secret_key="test", read_timeout=5.0)


class Ledger:
    """A table in the store, the job type that writes to it, and what the store accepted."""

    def __init__(self, client: Any, table: str) -> None:
        self.client, self.table = client, table
        self.written: list[str] = []  # fences under which the store took an item
        self.before_the_write: list[Callable[[], object]] = []  # pause points, once each
        self.after_the_write: list[Callable[[], object]] = []
        client.meta.events.register("before-call.dynamodb.PutItem", self._pause)
        client.meta.events.register("after-call.dynamodb.PutItem", self._count)

    def _pause(self, **_: Any) -> None:
        if self.before_the_write:
            self.before_the_write.pop()()

    def _count(self, http_response: Any, **_: Any) -> None:
        if http_response.status_code == 200:
            self.written.append("written")
        if self.after_the_write:
            self.after_the_write.pop()()

    def post(self, work: Work) -> str:
        item = {"amount": {"N": str(work.payload["amount"])}}
        conditional_put(work, client=self.client, table=self.table, key=self.key(work), item=item)
        return "posted"

    def ask(self, work: Work) -> Answer:
        found = raise_fence(work, client=self.client, table=self.table, key=self.key(work))
        return did_not_happen(entry="absent") if found is None else happened("posted", entry="present")

    def key(self, work: Work) -> Any:
        return {"pk": {"S": work.identity_key}}


@pytest.fixture
def ledger(store_url: str, request: pytest.FixtureRequest) -> Iterator[Ledger]:
    client = client_of(store_url)
    table = f"ledger-{abs(hash(request.node.nodeid))}"
    client.create_table(
        TableName=table,
        KeySchema=[{"AttributeName": "pk", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "pk", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    yield Ledger(client, table)
    client.close()


@pytest.fixture
def job(ledger: Ledger, database: Any) -> JobType:
    return defined(Target.B, ledger.post, reconcile=ledger.ask)


def ended(ran: Ran | None) -> Ended:
    assert ran is not None
    return ran.ended


def test_two_tenants_with_one_operation_id_each_have_their_entry(
    tenants: tuple[str, str], ledger: Ledger, job: JobType
) -> None:
    for tenant in tenants:
        enqueue(tenant, job=job)

    assert [ended(run_one(job)) for _ in tenants] == [Ended.COMPLETED] * 2
    assert len(ledger.client.scan(TableName=ledger.table)["Items"]) == 2
    assert [standing(tenant) for tenant in tenants] == [("succeeded", "posted")] * 2


def test_a_record_that_two_operations_share_is_doubt_and_never_the_effect_of_the_other(
    tenants: tuple[str, str], ledger: Ledger, database: Any, superuser: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fences of two items say nothing about each other: the first operation's entry is no answer about the second."""
    monkeypatch.setattr(ledger, "key", lambda work: {"pk": {"S": f"{work.tenant_id}/invoice-7"}})

    def post(work: Work) -> str:
        if work.operation_id == "op-2" and work.claim.attempts == 1:
            work.begin()
            raise RuntimeError("never arrived")
        return ledger.post(work)

    job = defined(Target.B, post, reconcile=ledger.ask)
    for operation in ("op-1", "op-2"):
        enqueue(tenants[0], operation, job=job)
        run_one(job)
    let_leases_run_out(superuser)
    run_one(job)
    assert standing(tenants[0], "op-1") == ("succeeded", "posted")
    assert standing(tenants[0], "op-2")[0] == "unknown"
    assert notes(superuser)[-1][1] == "cannot_tell"


def test_the_store_refuses_a_worker_that_slept_between_its_stamp_and_its_write(
    tenants: tuple[str, str], ledger: Ledger, job: JobType, superuser: Any
) -> None:
    enqueue(tenants[0], job=job)
    second: list[Ended] = []

    def another_takes_over() -> None:
        let_leases_run_out(superuser)
        second.append(ended(run_one(job, worker="second")))

    ledger.before_the_write.append(another_takes_over)

    assert ended(run_one(job, worker="first")) == Ended.LOST

    assert second == [Ended.COMPLETED]
    assert ledger.written == ["written"]
    assert standing(tenants[0]) == ("succeeded", "posted")
    assert notes(superuser) == [("reconcile", "did_not_happen", {"entry": "absent"})]


def test_a_takeover_after_the_effect_reconciles_and_does_not_repeat_it(
    tenants: tuple[str, str], ledger: Ledger, job: JobType, superuser: Any
) -> None:
    enqueue(tenants[0], job=job)

    def dies() -> None:
        raise KeyboardInterrupt

    ledger.after_the_write.append(dies)
    with pytest.raises(KeyboardInterrupt):
        run_one(job, worker="first")
    assert row(tenants[0])["state"] == "claimed"
    let_leases_run_out(superuser)

    assert ended(run_one(job, worker="second")) == Ended.COMPLETED

    assert ledger.written == ["written"]
    assert notes(superuser) == [("reconcile", "happened", {"entry": "present"})]
    assert row(tenants[0])["attempts"] == 2


class AlreadyBegun(Work):
    """A worker whose request is under way: it passed its stamp long ago."""

    def begin(self) -> None:
        pass


def test_a_late_write_between_the_look_and_the_second_write_is_refused(
    tenants: tuple[str, str], ledger: Ledger, job: JobType, superuser: Any
) -> None:
    """A plain read would have found nothing too, and both writes would have landed."""
    enqueue(tenants[0], job=job)
    (claim,) = protocol.claim(job_type=job.name, worker="first")
    protocol.begin(claim)
    let_leases_run_out(superuser)

    def the_late_write_arrives() -> None:
        with pytest.raises(OwnershipLost):
            ledger.post(AlreadyBegun(claim, job, store=PostgresPayloads()))

    ledger.before_the_write.append(the_late_write_arrives)

    assert ended(run_one(job, worker="second")) == Ended.COMPLETED
    assert ledger.written == ["written"]


def test_an_exception_before_the_stamp_gives_the_item_back(
    tenants: tuple[str, str], ledger: Ledger, superuser: Any
) -> None:
    failing = [True]

    def fails_once(work: Work) -> str:
        if failing.pop() if failing else False:
            raise ConnectionError
        return ledger.post(work)

    job = defined(Target.B, fails_once, reconcile=ledger.ask)
    enqueue(tenants[0], job=job)

    assert ended(run_one(job)) == Ended.RELEASED
    assert row(tenants[0])["effect_at"] is None
    assert run_one(job) is None, "a released item waits for its backoff"
    make_due(superuser)
    assert ended(run_one(job)) == Ended.COMPLETED
    assert notes(superuser) == []


def test_an_exception_after_the_effect_is_reconciled_under_the_same_claim(
    tenants: tuple[str, str], ledger: Ledger, job: JobType, superuser: Any
) -> None:
    enqueue(tenants[0], job=job)

    def breaks() -> None:
        raise ConnectionResetError

    ledger.after_the_write.append(breaks)

    assert ended(run_one(job)) == Ended.COMPLETED
    assert ledger.written == ["written"]
    assert notes(superuser) == [("reconcile", "happened", {"entry": "present"})]
    assert row(tenants[0])["attempts"] == 1


def test_an_effect_that_is_not_there_yet_is_left_to_a_claim_with_a_higher_fence(
    tenants: tuple[str, str], ledger: Ledger, job: JobType, superuser: Any
) -> None:
    """The worker's own write may still be under way, and its own fence would let it in."""
    enqueue(tenants[0], job=job)

    def breaks() -> None:
        raise ConnectionResetError

    ledger.before_the_write.append(breaks)

    assert ended(run_one(job)) == Ended.LEFT
    assert row(tenants[0])["state"] == "claimed"
    let_leases_run_out(superuser)
    assert ended(run_one(job)) == Ended.COMPLETED
    assert ledger.written == ["written"]


def test_a_store_that_cannot_be_asked_parks_the_item(tenants: tuple[str, str], superuser: Any) -> None:
    with provider() as broken:
        broken.answers = [hang_up, hang_up]
        ledger = Ledger(client_of(broken.url), "ledger")
        job = defined(Target.B, ledger.post, reconcile=ledger.ask)
        enqueue(tenants[0], job=job)

        assert ended(run_one(job)) == Ended.PARKED
        ledger.client.close()

    assert standing(tenants[0]) == ("unknown", "ambiguous:ConnectionClosedError")
    assert [(verb, code) for verb, code, _ in notes(superuser)] == [("reconcile", "cannot_tell")]
    assert len(broken.requests) == 2, "one write and one look-up: nothing is repeated by the client"


@pytest.mark.parametrize("status", [500, 503, 400])
def test_the_client_sends_each_request_once(tenants: tuple[str, str], status: int) -> None:
    with provider() as broken:
        broken.answers = [answer(status)] * 2
        ledger = Ledger(client_of(broken.url), "ledger")
        job = defined(Target.B, ledger.post, reconcile=ledger.ask)
        enqueue(tenants[0], job=job)

        run_one(job)
        ledger.client.close()

    assert len(broken.requests) == 2
