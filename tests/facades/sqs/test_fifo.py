"""FIFO queues: order within a group, one batch of a group in flight, and messages that are stored once."""

from __future__ import annotations

import time
from typing import Any

import pytest

from queuey.facades.sqs import messages
from tests.facades.sqs.signing import Sqs
from tests.facades.sqs.test_messages import receive
from tests.facades.sqs.test_queues import attributes, redrive
from tests.replacing import replace_in


@pytest.fixture
def url(sqs: Sqs) -> str:
    return sqs.create("jobs.fifo", FifoQueue="true", ContentBasedDeduplication="true")


def send(sqs: Sqs, url: str, body: str, group: str = "g", **more: Any) -> dict[str, Any]:  # noqa: ANN401 - parameters
    return sqs("SendMessage", QueueUrl=url, MessageBody=body, MessageGroupId=group, **more)


def bodies(messages: list[dict[str, Any]]) -> list[str]:
    return [one["Body"] for one in messages]


def test_attributes_of_fifo(sqs: Sqs, url: str) -> None:
    """A FIFO queue shows its attributes; the words can be changed, the kind cannot."""
    names = ("FifoQueue", "ContentBasedDeduplication", "DeduplicationScope", "FifoThroughputLimit")
    assert attributes(sqs, url, *names) == dict(zip(names, ("true", "true", "queue", "perQueue"), strict=True))
    requested = {"DeduplicationScope": "messageGroup", "FifoThroughputLimit": "perMessageGroupId"}
    sqs("SetQueueAttributes", QueueUrl=url, Attributes={**requested, "ContentBasedDeduplication": "false"})
    assert attributes(sqs, url, *names[1:]) == {"ContentBasedDeduplication": "false", **requested}
    for bad in ({"DeduplicationScope": "all"}, {"FifoQueue": "false"}):
        assert sqs.expect_failure("SetQueueAttributes", QueueUrl=url, Attributes=bad) == "InvalidAttributeValue"
    for name, requested in (("jobs", {"FifoQueue": "true"}), ("a.fifo", {}), (".fifo", {"FifoQueue": "true"})):
        assert sqs.expect_failure("CreateQueue", QueueName=name, Attributes=requested) == "InvalidParameterValue"
    assert sqs.create("jobs.fifo", FifoQueue="true") == url
    standard = sqs.create("standard")
    for queue, target in ((url, "standard"), (standard, "jobs.fifo")):
        requested = {"RedrivePolicy": redrive(target)}
        assert sqs.expect_failure("SetQueueAttributes", QueueUrl=queue, Attributes=requested) == "InvalidParameterValue"


def test_order(sqs: Sqs, url: str) -> None:
    """Messages of a group come in order; while some are in flight the following ones wait, but not other groups."""
    sent = [send(sqs, url, f"{number}", "ab"[number % 2]) for number in range(6)]
    numbers = [int(message["SequenceNumber"]) for message in sent]
    assert numbers == sorted(set(numbers))
    first = receive(sqs, url, AttributeNames=["All"])
    assert bodies(first) == ["0"]
    attributes = first[0]["Attributes"]
    assert (attributes["MessageGroupId"], attributes["SequenceNumber"]) == ("a", sent[0]["SequenceNumber"])
    assert len(attributes["MessageDeduplicationId"]) == 64
    following = receive(sqs, url, MaxNumberOfMessages=10)
    assert bodies(following) == ["1", "3", "5"]
    assert receive(sqs, url, MaxNumberOfMessages=10) == []
    sqs("DeleteMessage", QueueUrl=url, ReceiptHandle=first[0]["ReceiptHandle"])
    assert bodies(receive(sqs, url, MaxNumberOfMessages=10)) == ["2", "4"]
    sqs("DeleteMessage", QueueUrl=url, ReceiptHandle=following[0]["ReceiptHandle"])
    send(sqs, url, "7", "b")
    assert receive(sqs, url, MaxNumberOfMessages=10) == []
    for message in following[1:]:
        sqs("ChangeMessageVisibility", QueueUrl=url, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=0)
    assert bodies(receive(sqs, url, MaxNumberOfMessages=2)) == ["3", "5"]


def test_expired_receipts(sqs: Sqs, url: str) -> None:
    """A receipt is of no use once the message was received again, and that is said."""
    send(sqs, url, "a")
    [first] = receive(sqs, url, VisibilityTimeout=0)
    [second] = receive(sqs, url)
    assert second["MessageId"] == first["MessageId"]
    arguments = {"QueueUrl": url, "ReceiptHandle": first["ReceiptHandle"]}
    assert sqs.expect_failure("DeleteMessage", **arguments) == "InvalidParameterValue"
    receipts = [{"Id": str(at), "ReceiptHandle": one["ReceiptHandle"]} for at, one in enumerate((first, second))]
    done = sqs("DeleteMessageBatch", QueueUrl=url, Entries=receipts)
    assert ([one["Id"] for one in done["Successful"]], [one["Id"] for one in done["Failed"]]) == (["1"], ["0"])


def test_two_with_one_group(sqs: Sqs, url: str) -> None:
    """A receiver of long ago cannot continue with its message while another one has an earlier message of the group."""
    for body in ("1", "2"):
        send(sqs, url, body)
    first = receive(sqs, url, MaxNumberOfMessages=10, VisibilityTimeout=1)
    assert bodies(first) == ["1", "2"]
    [other] = receive(sqs, url, WaitTimeSeconds=10)
    assert other["Body"] == "1"
    late = {"QueueUrl": url, "ReceiptHandle": first[1]["ReceiptHandle"], "VisibilityTimeout": 30}
    assert sqs.expect_failure("ChangeMessageVisibility", **late) == "MessageNotInflight"
    sqs("DeleteMessage", QueueUrl=url, ReceiptHandle=other["ReceiptHandle"])
    sqs("ChangeMessageVisibility", **late)


def test_sent_once(sqs: Sqs, url: str) -> None:
    """Of messages with one deduplication id one is stored, whatever their bodies, also when it was deleted since."""
    first = send(sqs, url, "a", MessageDeduplicationId="x")
    again = send(sqs, url, "b", "other", MessageDeduplicationId="x")
    assert (again["MessageId"], again["SequenceNumber"]) == (first["MessageId"], first["SequenceNumber"])
    [message] = receive(sqs, url, MaxNumberOfMessages=10, AttributeNames=["MessageDeduplicationId"])
    assert (message["Body"], message["Attributes"]) == ("a", {"MessageDeduplicationId": "x"})
    sqs("DeleteMessage", QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    send(sqs, url, "c", MessageDeduplicationId="x")
    assert receive(sqs, url, MaxNumberOfMessages=10) == []
    assert send(sqs, url, "by content")["MessageId"] == send(sqs, url, "by content")["MessageId"]


def test_once_for_each_group(sqs: Sqs) -> None:
    """A queue may have deduplication ids for each group apart."""
    url = sqs.create("q.fifo", FifoQueue="true", DeduplicationScope="messageGroup")
    for group in ("a", "b", "a"):
        send(sqs, url, group, group, MessageDeduplicationId="x")
    assert sorted(bodies(receive(sqs, url, MaxNumberOfMessages=10))) == ["a", "b"]


def test_for_how_long(sqs: Sqs, url: str) -> None:
    """A deduplication id is remembered for five minutes."""
    assert messages.DEDUP_INTERVAL == 300
    with replace_in(messages, messages.DEDUP_INTERVAL, 1):
        send(sqs, url, "a")
    time.sleep(1.2)
    send(sqs, url, "a")
    assert bodies(receive(sqs, url, MaxNumberOfMessages=10)) == ["a", "a"]


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({}, "MissingParameter"),
        ({"MessageGroupId": ""}, "InvalidParameterValue"),
        ({"MessageGroupId": "a b"}, "InvalidParameterValue"),
        ({"MessageGroupId": "a" * 129}, "InvalidParameterValue"),
        ({"MessageGroupId": "a", "MessageDeduplicationId": "é"}, "InvalidParameterValue"),
        ({"MessageGroupId": "a", "DelaySeconds": 1}, "InvalidParameterValue"),
    ],
)
def test_what_cannot_be_sent(sqs: Sqs, url: str, given: dict[str, Any], error: str) -> None:
    """A message of a FIFO queue needs a group, and has no delay of its own."""
    assert sqs.expect_failure("SendMessage", QueueUrl=url, MessageBody="a", **given) == error
    assert receive(sqs, url) == []
    plain = sqs.create("plain.fifo", FifoQueue="true")
    bare = {"QueueUrl": plain, "MessageBody": "a", "MessageGroupId": "g", "DelaySeconds": 0}
    assert sqs.expect_failure("SendMessage", **bare) == "InvalidParameterValue"


def test_batches(sqs: Sqs, url: str) -> None:
    """A batch keeps the order of each group, and stores each of its messages once."""
    entries = [
        {"Id": str(n), "MessageBody": str(n % 8), "MessageGroupId": "ab"[n % 2], "MessageDeduplicationId": str(n % 8)}
        for n in range(10)
    ]
    sent = sqs("SendMessageBatch", QueueUrl=url, Entries=entries)
    assert [one["Id"] for one in sent["Successful"]] == [str(n) for n in range(10)]
    assert sent["Successful"][8]["SequenceNumber"] == sent["Successful"][0]["SequenceNumber"]
    got = bodies(receive(sqs, url, MaxNumberOfMessages=10))
    assert [body for body in got if int(body) % 2] == ["1", "3", "5", "7"]
    assert [body for body in got if not int(body) % 2] == ["0", "2", "4", "6"]


def test_delays(sqs: Sqs) -> None:
    """A queue may delay all messages, which keep their order; the delay can grow, but not shrink."""
    url = sqs.create("q.fifo", FifoQueue="true", ContentBasedDeduplication="true", DelaySeconds="1")
    began = time.monotonic()
    for body in "abc":
        send(sqs, url, body)
    assert receive(sqs, url) == []
    received = bodies(receive(sqs, url, MaxNumberOfMessages=10, WaitTimeSeconds=10))
    assert (received[0], time.monotonic() - began > 0.9) == ("a", True)
    sqs("SetQueueAttributes", QueueUrl=url, Attributes={"DelaySeconds": "2"})
    change = {"QueueUrl": url, "Attributes": {"DelaySeconds": "1"}}
    assert sqs.expect_failure("SetQueueAttributes", **change) == "InvalidAttributeValue"
