"""boto3 on a real service, on each store: messages and errors. The rest is tested in process: see tests/facades."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from botocore.config import Config

from tests.acceptance.sqs.conftest import Sqs

WAIT = 60.0
"""Timeout in seconds of what has to happen."""


def client_of(url: str, access_key: str, secret: str, kind: Any = boto3.client, **config: Any) -> Any:  # noqa: ANN401
    return kind(
        "sqs",
        endpoint_url=url,
        region_name="eu-west-1",
        aws_access_key_id=access_key,
        aws_secret_access_key=secret,
        config=Config(**config),
    )


@pytest.fixture(scope="package")
def client(sqs: Sqs) -> Iterator[Any]:
    made = client_of(sqs.url, sqs.access_key, sqs.secret, max_pool_connections=40)
    yield made
    made.close()


def receive(client: Any, url: str, most: int = 10, **given: Any) -> list[dict[str, Any]]:  # noqa: ANN401 - boto3's
    """Receives until there are ``most`` messages. Fails if they do not come in time."""
    messages: list[dict[str, Any]] = []
    end = time.monotonic() + WAIT
    while len(messages) < most:
        assert time.monotonic() < end, f"{len(messages)} of {most}"
        remaining = min(10, most - len(messages))
        answer = client.receive_message(QueueUrl=url, MaxNumberOfMessages=remaining, WaitTimeSeconds=5, **given)
        messages += answer.get("Messages", [])
    return messages


def test_messages(client: Any, queue: str) -> None:  # noqa: ANN401 - boto3's
    """Messages with attributes of all types, one by one and in batches; boto3 checks the digests."""
    url = client.create_queue(QueueName=queue)["QueueUrl"]
    attributes = {
        "text": {"DataType": "String", "StringValue": "é"},
        "count": {"DataType": "Number", "StringValue": "5"},
        "raw": {"DataType": "Binary", "BinaryValue": bytes(range(256))},
    }
    sent = client.send_message(QueueUrl=url, MessageBody="hällo\n", MessageAttributes=attributes)
    [message] = receive(client, url, 1, AttributeNames=["All"], MessageAttributeNames=["All"], VisibilityTimeout=600)
    assert (message["Body"], message["MessageId"]) == ("hällo\n", sent["MessageId"])
    assert message["MessageAttributes"] == attributes
    assert message["MD5OfMessageAttributes"] == sent["MD5OfMessageAttributes"]
    assert message["Attributes"]["ApproximateReceiveCount"] == "1"
    handle = message["ReceiptHandle"]
    client.change_message_visibility(QueueUrl=url, ReceiptHandle=handle, VisibilityTimeout=0)
    [again] = receive(client, url, 1)
    client.delete_message(QueueUrl=url, ReceiptHandle=again["ReceiptHandle"])
    entries = [{"Id": str(number), "MessageBody": "x" * 50_000 + str(number)} for number in range(10)]
    assert len(client.send_message_batch(QueueUrl=url, Entries=entries)["Successful"]) == 10
    messages = receive(client, url)
    assert sorted(one["Body"][-1] for one in messages) == [str(number) for number in range(10)]
    named = [{"Id": str(at), "ReceiptHandle": one["ReceiptHandle"]} for at, one in enumerate(messages)]
    changed = client.change_message_visibility_batch(
        QueueUrl=url, Entries=[{**one, "VisibilityTimeout": 100} for one in named]
    )
    assert len(changed["Successful"]) == 10
    assert len(client.delete_message_batch(QueueUrl=url, Entries=named)["Successful"]) == 10
    counted = client.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    assert {value for name, value in counted.items() if name.startswith("Approximate")} == {"0"}
