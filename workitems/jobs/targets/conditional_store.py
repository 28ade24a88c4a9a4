"""Type B, conditional store: DynamoDB rejects a write whose fence is lower than one it has seen, within the write itself."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

from workitems.errors import OwnershipLost
from workitems.jobs.work import Work

if TYPE_CHECKING:
    from types_boto3_dynamodb import DynamoDBClient

SEEN = "fencewatch_seen_fence"  # the highest fence that came by, effect or not
ACTED = "fencewatch_effect_fence"  # the fence under which the effect was written; absent: no effect
_LOWER_FENCES_ONLY = "attribute_not_exists(#seen) OR #seen <= :fence"

type Key = Mapping[str, Any]  # as DynamoDB writes it: {"pk": {"S": "..."}}; the tenant belongs in it


def dynamodb(
    *,
    region: str,
    endpoint: str | None = None,
    access_key: str | None = None,
    secret_key: str | None = None,
    connect_timeout: float = 3.0,
    read_timeout: float = 10.0,
) -> "DynamoDBClient":
    """A client that sends each request once: a silent retry would be a second effect that nobody stamped.

    Without keys the usual places are searched for credentials. Timeouts in seconds.
    """
    return boto3.session.Session().client(  # a session of its own: the default one is not safe between threads
        "dynamodb",
        region_name=region,
        endpoint_url=endpoint,
        aws_access_key_id=access_key,
        aws_secret_access_key=secret_key,
        config=Config(
            retries={"total_max_attempts": 1, "mode": "standard"},
            connect_timeout=connect_timeout,
            read_timeout=read_timeout,
        ),
    )


def conditional_put(work: Work, *, client: "DynamoDBClient", table: str, key: Key, item: Mapping[str, Any]) -> None:
    """Stamp `begin`, then write the item if the store has seen no higher fence at its key.

    Raises: OwnershipLost when it has: a newer claim acts. InDoubt when there was no clear answer.
    """
    fence = {"N": str(work.fence)}
    with work.effect(), _refusal_is_loss():
        client.put_item(
            TableName=table,
            Item={**item, **key, SEEN: fence, ACTED: fence},
            ConditionExpression=_LOWER_FENCES_ONLY,
            ExpressionAttributeNames={"#seen": SEEN},
            ExpressionAttributeValues={":fence": fence},
        )


def raise_fence(work: Work, *, client: "DynamoDBClient", table: str, key: Key) -> Mapping[str, Any] | None:
    """Close the door to writes of lower fences, then look: the item if an effect is there, None if there is none.

    One update does both, and DynamoDB answers with what stood after it; no later read could be older.
    Raises: OwnershipLost when the store has seen a higher fence.
    """
    fence = {"N": str(work.fence)}
    with _refusal_is_loss():
        answer = client.update_item(
            TableName=table,
            Key=dict(key),
            UpdateExpression="SET #seen = :fence",
            ConditionExpression=_LOWER_FENCES_ONLY,
            ExpressionAttributeNames={"#seen": SEEN},
            ExpressionAttributeValues={":fence": fence},
            ReturnValues="ALL_NEW",
        )
    item = answer["Attributes"]
    return item if ACTED in item else None


@contextmanager
def _refusal_is_loss() -> Iterator[None]:
    try:
        yield
    except ClientError as error:
        if error.response.get("Error", {}).get("Code") == "ConditionalCheckFailedException":
            raise OwnershipLost("The store has seen a higher fence: a newer claim exists; stop.") from None
        raise
