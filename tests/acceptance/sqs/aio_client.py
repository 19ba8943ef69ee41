"""The client of :mod:`test_other_clients`, in an environment of its own. ENDPOINT is the URL of the service."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any
from uuid import uuid4

import aioboto3
from aiobotocore.config import AioConfig
from botocore.exceptions import ClientError

TASKS, EACH = 30, 5


async def expect_error_code(call: Any, code: str) -> None:  # noqa: ANN401 - a coroutine
    error_code = None
    try:
        await call
    except ClientError as error:
        error_code = error.response["Error"]["Code"]
    assert error_code == code, f"{code} was expected, and not {error_code}"


async def check_actions(sqs: Any) -> None:  # noqa: ANN401 - a client
    name = f"aio{uuid4().hex[:10]}"
    url = (await sqs.create_queue(QueueName=name, Attributes={"VisibilityTimeout": "20"}, tags={"a": "b"}))["QueueUrl"]
    attributes = {
        "text": {"DataType": "String", "StringValue": "ÿ€"},
        "bytes": {"DataType": "Binary", "BinaryValue": bytes(range(256))},
    }
    sent = await sqs.send_message(QueueUrl=url, MessageBody="ä\U0001f600", MessageAttributes=attributes)
    received = await sqs.receive_message(
        QueueUrl=url, WaitTimeSeconds=10, MessageAttributeNames=["All"], AttributeNames=["ApproximateReceiveCount"]
    )
    [message] = received["Messages"]
    assert (message["MessageId"], message["Body"]) == (sent["MessageId"], "ä\U0001f600")
    assert message["MessageAttributes"] == attributes
    assert message["Attributes"] == {"ApproximateReceiveCount": "1"}
    entries = [{"Id": "a", "ReceiptHandle": message["ReceiptHandle"]}, {"Id": "b", "ReceiptHandle": "none"}]
    deleted = await sqs.delete_message_batch(QueueUrl=url, Entries=entries)
    assert [one["Id"] for one in deleted["Successful"]] == ["a"]
    assert [one["Code"] for one in deleted["Failed"]] == ["ReceiptHandleIsInvalid"]

    await expect_error_code(sqs.receive_message(QueueUrl=f"{url}-none"), "AWS.SimpleQueueService.NonExistentQueue")
    await expect_error_code(sqs.delete_message(QueueUrl=url, ReceiptHandle="none"), "ReceiptHandleIsInvalid")
    await expect_error_code(sqs.create_queue(QueueName=name, Attributes={"DelaySeconds": "9"}), "QueueAlreadyExists")
    await sqs.delete_queue(QueueUrl=url)


async def check_concurrent_tasks(sqs: Any) -> None:  # noqa: ANN401 - as above
    url = (await sqs.create_queue(QueueName=f"aio{uuid4().hex[:10]}"))["QueueUrl"]
    received: list[str] = []
    end = time.monotonic() + 60

    async def send_and_receive(task: int) -> None:
        for number in range(EACH):
            await sqs.send_message(QueueUrl=url, MessageBody=f"{task} {number}")
        while len(received) < TASKS * EACH:
            assert time.monotonic() < end, f"{len(received)} messages"
            answer = await sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=3, WaitTimeSeconds=1)
            messages = answer.get("Messages", [])
            received.extend(message["Body"] for message in messages)
            for message in messages:
                await sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])

    await asyncio.gather(*map(send_and_receive, range(TASKS)))
    assert sorted(received) == sorted(f"{task} {number}" for task in range(TASKS) for number in range(EACH))
    await sqs.delete_queue(QueueUrl=url)


async def main() -> None:
    """Uses the service alone and together; then asserts that a wrong secret is refused."""
    session = aioboto3.Session(region_name=os.environ["AWS_REGION"])
    endpoint = os.environ["ENDPOINT"]
    # Receives that wait would use all of the default ten connections, and leave none for sends.
    config = AioConfig(max_pool_connections=TASKS + 1)
    async with session.client("sqs", endpoint_url=endpoint, config=config) as sqs:
        await asyncio.gather(check_actions(sqs), check_concurrent_tasks(sqs))
    wrong = {"aws_access_key_id": os.environ["AWS_ACCESS_KEY_ID"], "aws_secret_access_key": "other"}
    async with session.client("sqs", endpoint_url=endpoint, **wrong) as sqs:
        await expect_error_code(sqs.list_queues(), "SignatureDoesNotMatch")


if __name__ == "__main__":
    asyncio.run(main())
