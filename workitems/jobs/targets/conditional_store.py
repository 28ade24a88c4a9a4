"""Type B, conditional store: DynamoDB rejects a write whose fence is lower than one it has seen, within the write itself."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

from workitems.errors import OwnershipLost
from workitems.jobs.work import InDoubt, Work

if TYPE_CHECKING:
    from types_boto3_dynamodb import DynamoDBClient

SEEN = "fencewatch_seen_fence"  # the highest fence that came by, effect or not
ACTED = "fencewatch_effect_fence"  # the fence under which the effect was written; absent: no effect
OPERATION = "fencewatch_operation"  # whose record this is
# Fences of two items say nothing about each other: another operation's record is not ours to compare with.
_OURS_AND_NO_HIGHER_FENCE = "attribute_not_exists(#seen) OR (#operation = :operation AND #seen <= :fence)"

# As DynamoDB writes it: {"pk": {"S": "..."}}. One record per operation, so tenant and operation belong in it: on a record that
# two operations share, the effect of one would be taken for the other's.
type Key = Mapping[str, Any]


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

    Raises: OwnershipLost when it has: a newer claim acts. InDoubt when there was no clear answer, or the record is
    another operation's.
    """
    fence, operation = {"N": str(work.fence)}, {"S": work.identity_key}
    with work.effect(), _refusal_named(work):
        client.put_item(
            TableName=table,
            Item={**item, **key, SEEN: fence, ACTED: fence, OPERATION: operation},
            ConditionExpression=_OURS_AND_NO_HIGHER_FENCE,
            ExpressionAttributeNames={"#seen": SEEN, "#operation": OPERATION},
            ExpressionAttributeValues={":fence": fence, ":operation": operation},
            ReturnValuesOnConditionCheckFailure="ALL_OLD",
        )


def raise_fence(work: Work, *, client: "DynamoDBClient", table: str, key: Key) -> Mapping[str, Any] | None:
    """Close the door to writes of lower fences, then look: the item if an effect is there, None if there is none.

    One update does both, and DynamoDB answers with what stood after it; no later read could be older.
    Raises: OwnershipLost when the store has seen a higher fence. InDoubt when the record is another operation's.
    """
    fence, operation = {"N": str(work.fence)}, {"S": work.identity_key}
    with _refusal_named(work):
        answer = client.update_item(
            TableName=table,
            Key=dict(key),
            UpdateExpression="SET #seen = :fence, #operation = :operation",
            ConditionExpression=_OURS_AND_NO_HIGHER_FENCE,
            ExpressionAttributeNames={"#seen": SEEN, "#operation": OPERATION},
            ExpressionAttributeValues={":fence": fence, ":operation": operation},
            ReturnValues="ALL_NEW",
            ReturnValuesOnConditionCheckFailure="ALL_OLD",
        )
    item = answer["Attributes"]
    return item if ACTED in item else None


@contextmanager
def _refusal_named(work: Work) -> Iterator[None]:
    """Tell a refusal for a higher fence, which is lost ownership, from one for another operation's record, which is doubt."""
    try:
        yield
    except ClientError as error:
        if error.response.get("Error", {}).get("Code") != "ConditionalCheckFailedException":
            raise
        stands = cast("Mapping[str, Any]", error.response.get("Item") or {})
        if stands.get(OPERATION, {}).get("S") != work.identity_key:
            raise InDoubt("record_of_another_operation") from None
        raise OwnershipLost("The store has seen a higher fence: a newer claim exists; stop.") from None
