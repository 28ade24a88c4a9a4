"""The ledger's store keeps its data over a restart, and its count of accepted postings over everything."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from dashboard import servers
from dashboard.demo.company import ANYBODY, LEDGER_TABLE, REGION
from dashboard.demo.seed import make_ledger
from dashboard.demo.world.records import Records
from tests.processes import ROOT, wait_until

FENCE = "attribute_not_exists(seen) OR seen <= :fence"


@contextmanager
def running_ledger(records: Records) -> Iterator[Any]:
    port = servers.free_port()
    arguments = ("-m", "dashboard.demo.world.ledger", "--port", str(port), "--record", str(records.ledger))
    process = servers.spawn([sys.executable, *arguments], log=records.folder / "ledger.log", folder=ROOT)
    client = boto3.client(
        "dynamodb",
        region_name=REGION,
        endpoint_url=f"http://127.0.0.1:{port}",
        aws_access_key_id=ANYBODY,
        aws_secret_access_key=ANYBODY,
        config=Config(retries={"total_max_attempts": 1}, connect_timeout=2, read_timeout=5),
    )
    try:
        wait_until(lambda: servers.port_is_taken(port), what="the ledger listened", process=process)
        yield client
    finally:
        servers.end(process, seconds=5)


def post(client: Any, *, operation: str, fence: int) -> None:
    client.put_item(
        TableName=LEDGER_TABLE,
        Item={"tenant": {"S": "acme-eu"}, "operation": {"S": operation}, "seen": {"N": str(fence)}},
        ConditionExpression=FENCE,
        ExpressionAttributeValues={":fence": {"N": str(fence)}},
    )


def test_what_was_posted_and_refused_survives_a_restart(tmp_path: Path) -> None:
    records = Records(folder=tmp_path)
    with running_ledger(records) as client:
        make_ledger(client)
        post(client, operation="posting-1001", fence=5)
        with pytest.raises(ClientError, match="ConditionalCheckFailed"):
            post(client, operation="posting-1001", fence=4)
    with running_ledger(records) as client:
        make_ledger(client)  # finds the table there
        with pytest.raises(ClientError, match="ConditionalCheckFailed"):
            post(client, operation="posting-1001", fence=4)
        assert client.scan(TableName=LEDGER_TABLE)["Items"][0]["seen"] == {"N": "5"}
    assert len(records.postings.read_text().splitlines()) == 1
