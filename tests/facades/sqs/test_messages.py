"""Messages of SQS: sizes, characters, attributes, receipts, visibility and batches."""

from __future__ import annotations

import json
import time
from base64 import b64encode
from hashlib import md5
from typing import Any

import pytest

from queuey.model.errors import StoreUnavailable
from queuey.storage import Messages
from tests.facades.sqs.signing import Sqs
from tests.facades.test_facades import failing
from tests.interposed_store import InterposedStore

MEBIBYTE = 1024 * 1024


@pytest.fixture
def url(sqs: Sqs) -> str:
    return sqs.create("jobs")


def receive(sqs: Sqs, url: str, **given: Any) -> list[dict[str, Any]]:  # noqa: ANN401 - what the action takes
    messages: list[dict[str, Any]] = sqs("ReceiveMessage", QueueUrl=url, **given).get("Messages", [])
    return messages


def test_bodies(sqs: Sqs, url: str) -> None:
    """A body comes back unchanged, with its digest."""
    for body in ("a", " ", "é\U0001f600", "\t\n\r", '{"a":1}', "x" * MEBIBYTE, "\ufffd"):
        digest = md5(body.encode()).hexdigest()
        sent = sqs("SendMessage", QueueUrl=url, MessageBody=body)
        assert (sent["MD5OfMessageBody"], "MD5OfMessageAttributes" in sent) == (digest, False)
        [message] = receive(sqs, url)
        assert (message["Body"], message["MD5OfBody"], message["MessageId"]) == (body, digest, sent["MessageId"])
        assert message.keys() == {"Body", "MD5OfBody", "MessageId", "ReceiptHandle"}


def value(kind: str, text: str) -> dict[str, str]:
    return {"DataType": kind, "BinaryValue" if kind.startswith("Binary") else "StringValue": text}


BYTES = b64encode(bytes(range(256))).decode()


def test_attributes(sqs: Sqs, url: str) -> None:
    """Attributes of all types come back if requested, with a digest of these."""
    stored = {
        "text": value("String", "é"),
        "text.more": value("String.json", "{}"),
        "count": value("Number", "-1.5e3"),
        "raw": value("Binary.gif", BYTES),
    }
    sent = sqs("SendMessage", QueueUrl=url, MessageBody="a", MessageAttributes=stored)
    requested: list[list[str]] = [["All"], ["ALL"], ["*"], [".*"], ["text.*"], ["count", "none"], [], ["tex"]]
    names = [[*stored], [*stored], [*stored], [*stored], ["text", "text.more"], ["count"], [], []]
    for want, expected in zip(requested, names, strict=True):
        [message] = receive(sqs, url, MessageAttributeNames=want, VisibilityTimeout=0)
        assert message.get("MessageAttributes", {}) == {name: stored[name] for name in expected}
        assert (message.get("MD5OfMessageAttributes") == sent["MD5OfMessageAttributes"]) == (len(expected) == 4)
        assert ("MD5OfMessageAttributes" in message) == bool(expected)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_sizes_count_the_bytes_of_binary_attributes(sqs: Sqs, size: int) -> None:
    """A binary attribute counts its bytes, however many characters of base64 they need."""
    url = sqs.create("small", MaximumMessageSize="1024")
    attribute = {"a": {"DataType": "Binary", "BinaryValue": b64encode(b"x" * size).decode()}}
    fits = 1024 - size - len("aBinary")
    sqs("SendMessage", QueueUrl=url, MessageBody="x" * fits, MessageAttributes=attribute)
    arguments = {"QueueUrl": url, "MessageBody": "x" * (fits + 1), "MessageAttributes": attribute}
    assert sqs.expect_failure("SendMessage", **arguments) == "InvalidParameterValue"


def test_trace_of_a_request(sqs: Sqs, url: str) -> None:
    """Messages of a request with a trace header have it, but for those with one of their own."""
    own = {"AWSTraceHeader": value("String", "own")}
    entries = [{"Id": "a", "MessageBody": "a"}, {"Id": "b", "MessageBody": "b", "MessageSystemAttributes": own}]
    for action, arguments in (("SendMessage", {"MessageBody": "c"}), ("SendMessageBatch", {"Entries": entries})):
        headers = {"x-amz-target": f"AmazonSQS.{action}", "content-type": "application/x-amz-json-1.0"}
        request = sqs.sign_request(json.dumps({"QueueUrl": url, **arguments}).encode(), headers)
        request.headers["X-Amzn-Trace-Id"] = "Root=1"
        assert "MD5OfMessageSystemAttributes" not in json.loads(sqs.send(request).body)
    got = receive(sqs, url, MaxNumberOfMessages=10, AttributeNames=["AWSTraceHeader"])
    traces = {message["Body"]: message["Attributes"]["AWSTraceHeader"] for message in got}
    assert traces == {"a": "Root=1", "b": "own", "c": "Root=1"}


def test_system_attributes(sqs: Sqs, url: str) -> None:
    """Times, counts and the trace header are there if they are asked for; of a delayed message since it was sent."""
    began = time.time()
    trace = {"AWSTraceHeader": value("String", "Root=1-5759e988-bd862e3fe1be46a994272793")}
    sent = sqs("SendMessage", QueueUrl=url, MessageBody="a", MessageSystemAttributes=trace, DelaySeconds=1)
    assert sent["MD5OfMessageSystemAttributes"]
    [message] = receive(sqs, url, MessageSystemAttributeNames=["ALL"], WaitTimeSeconds=5, VisibilityTimeout=0)
    attributes = message["Attributes"]
    assert (attributes["SenderId"], attributes["ApproximateReceiveCount"]) == ("shop", "1")
    assert attributes["AWSTraceHeader"] == trace["AWSTraceHeader"]["StringValue"]
    assert abs(int(attributes["SentTimestamp"]) / 1000 - began) < 0.9
    assert int(attributes["ApproximateFirstReceiveTimestamp"]) / 1000 >= began + 0.9
    [again] = receive(sqs, url, MessageSystemAttributeNames=["ApproximateReceiveCount"])
    assert again["Attributes"] == {"ApproximateReceiveCount": "2"}
    bad = {"Other": value("String", "a")}
    arguments = {"QueueUrl": url, "MessageBody": "a", "MessageSystemAttributes": bad}
    assert sqs.expect_failure("SendMessage", **arguments) == "InvalidParameterValue"


def test_visibility(sqs: Sqs, url: str) -> None:
    """A message is hidden for as long as is said; it can be hidden for longer, for less and no more."""
    sqs("SendMessage", QueueUrl=url, MessageBody="a")
    [message] = receive(sqs, url, VisibilityTimeout=600)
    handle = message["ReceiptHandle"]
    for seconds in (43_000, 1):
        sqs("ChangeMessageVisibility", QueueUrl=url, ReceiptHandle=handle, VisibilityTimeout=seconds)
        assert receive(sqs, url) == []
    [again] = receive(sqs, url, WaitTimeSeconds=5)
    assert again["ReceiptHandle"] != handle
    arguments = {"QueueUrl": url, "VisibilityTimeout": 5}
    assert sqs.expect_failure("ChangeMessageVisibility", ReceiptHandle=handle, **arguments) == "MessageNotInflight"
    arguments = {"QueueUrl": url, "ReceiptHandle": again["ReceiptHandle"]}
    assert (
        sqs.expect_failure("ChangeMessageVisibility", VisibilityTimeout=43_201, **arguments) == "InvalidParameterValue"
    )
    assert sqs.expect_failure("ChangeMessageVisibility", **arguments) == "MissingParameter"
    sqs("ChangeMessageVisibility", VisibilityTimeout=0, **arguments)
    assert [one["MessageId"] for one in receive(sqs, url)] == [message["MessageId"]]


@pytest.mark.parametrize(
    ("hours", "seconds", "allowed"), [(0, 43_200, True), (1, 39_700, False), (12.5, 1, False), (12.5, 0, True)]
)
def test_visibility_in_all(sqs: Sqs, url: str, hours: float, seconds: int, *, allowed: bool) -> None:
    """A message is hidden for at most 12 hours since it was received, however often that is extended."""
    sqs("SendMessage", QueueUrl=url, MessageBody="a")
    [message] = receive(sqs, url, VisibilityTimeout=43_200)
    prefix, received = message["ReceiptHandle"].rsplit("-", 1)
    handle = f"{prefix}-{int(received, 16) - round(3600 * hours):08x}"  # as if received then
    change = {"ReceiptHandle": handle, "VisibilityTimeout": seconds}
    answer = sqs("ChangeMessageVisibilityBatch", QueueUrl=url, Entries=[{"Id": "a", **change}])
    if allowed:
        assert answer == {"Successful": [{"Id": "a"}]}
        return
    [failed] = answer["Failed"]
    assert (failed["Code"], "Total VisibilityTimeout" in failed["Message"]) == ("InvalidParameterValue", True)
    assert sqs.expect_failure("ChangeMessageVisibility", QueueUrl=url, **change) == "InvalidParameterValue"
    sqs("DeleteMessage", QueueUrl=url, ReceiptHandle=handle)


def test_deleted(sqs: Sqs, url: str) -> None:
    """Deleting twice, or with a superseded receipt, is not an error; the newest receipt deletes."""
    sqs("SendMessage", QueueUrl=url, MessageBody="a")
    [first] = receive(sqs, url, VisibilityTimeout=0)
    [second] = receive(sqs, url)
    for received in (first, second, second):
        sqs("DeleteMessage", QueueUrl=url, ReceiptHandle=received["ReceiptHandle"])
    arguments = {"QueueUrl": url, "ReceiptHandle": second["ReceiptHandle"], "VisibilityTimeout": 0}
    assert sqs.expect_failure("ChangeMessageVisibility", **arguments) == "InvalidParameterValue"
    assert receive(sqs, url) == []


def test_bad_receipts(sqs: Sqs, url: str) -> None:
    """An invalid receipt is refused, as is one of another queue."""
    for handle in ("", "a", "1-2-3", "é", "x" * 100_000, "f" * 100_000 + "-abcdef", "-" * 9):
        assert sqs.expect_failure("DeleteMessage", QueueUrl=url, ReceiptHandle=handle) == "ReceiptHandleIsInvalid"
    other = sqs.create("other")
    sqs("SendMessage", QueueUrl=other, MessageBody="a")
    [message] = receive(sqs, other)
    arguments = {"QueueUrl": url, "ReceiptHandle": message["ReceiptHandle"]}
    assert sqs.expect_failure("DeleteMessage", **arguments) == "ReceiptHandleIsInvalid"
    prefix, _ = message["ReceiptHandle"].rsplit("-", 1)
    for received in ("", "x" * 8, "f" * 100_000):
        changed = {"QueueUrl": other, "ReceiptHandle": f"{prefix}-{received}", "VisibilityTimeout": 9}
        assert sqs.expect_failure("ChangeMessageVisibility", **changed) == "ReceiptHandleIsInvalid"


def test_receives(sqs: Sqs, url: str) -> None:
    """One message by default, ten at most; the queue says for how long, and how long a receive waits."""
    for number in range(12):
        sqs("SendMessage", QueueUrl=url, MessageBody=str(number))
    assert [one["Body"] for one in receive(sqs, url)] == ["0"]
    assert [one["Body"] for one in receive(sqs, url, MaxNumberOfMessages=10)] == [str(n) for n in range(1, 11)]
    waiting = sqs.create("waiting", ReceiveMessageWaitTimeSeconds="1", DelaySeconds="1")
    began = time.monotonic()
    assert receive(sqs, waiting) == []
    assert 0.9 < time.monotonic() - began < 10
    sqs("SendMessage", QueueUrl=waiting, MessageBody="a")
    assert receive(sqs, waiting, WaitTimeSeconds=0) == []
    assert [one["Body"] for one in receive(sqs, waiting, WaitTimeSeconds=20)] == ["a"]


def entries(*names: str, **more: Any) -> list[dict[str, Any]]:  # noqa: ANN401 - of an entry
    return [{"Id": name, "MessageBody": name, **more} for name in names]


def test_batches(sqs: Sqs, url: str) -> None:
    """Each entry has its own result; failed entries do not affect the others."""
    sent = sqs("SendMessageBatch", QueueUrl=url, Entries=[*entries("a", "b"), *entries("c", DelaySeconds=1000)])
    assert [one["Id"] for one in sent["Successful"]] == ["a", "b"]
    [failed] = sent["Failed"]
    assert (failed["Id"], failed["SenderFault"], failed["Code"]) == ("c", True, "InvalidParameterValue")
    got = receive(sqs, url, MaxNumberOfMessages=10)
    assert [one["MessageId"] for one in got] == [one["MessageId"] for one in sent["Successful"]]
    handles = [{"Id": one["Body"], "ReceiptHandle": one["ReceiptHandle"], "VisibilityTimeout": 0} for one in got]
    bad = {"Id": "bad", "ReceiptHandle": "x", "VisibilityTimeout": 0}
    changed = sqs("ChangeMessageVisibilityBatch", QueueUrl=url, Entries=[*handles, bad])
    assert [one["Id"] for one in changed["Successful"]] == ["a", "b"]
    assert [(one["Id"], one["Code"]) for one in changed["Failed"]] == [("bad", "ReceiptHandleIsInvalid")]
    got = receive(sqs, url, MaxNumberOfMessages=10)
    receipts = [{"Id": one["Body"], "ReceiptHandle": one["ReceiptHandle"]} for one in got]
    old = [{"Id": "old", "ReceiptHandle": handles[0]["ReceiptHandle"], "VisibilityTimeout": 9}]
    lost = sqs("ChangeMessageVisibilityBatch", QueueUrl=url, Entries=old)
    assert [one["Code"] for one in lost["Failed"]] == ["AWS.SimpleQueueService.MessageNotInflight"]
    done = sqs("DeleteMessageBatch", QueueUrl=url, Entries=[*receipts, {"Id": "bad", "ReceiptHandle": "x"}])
    assert ([one["Id"] for one in done["Successful"]], len(done["Failed"])) == (["a", "b"], 1)
    assert receive(sqs, url) == []


def test_the_store_is_away(sqs: Sqs, url: str, between: InterposedStore) -> None:
    """A message that may not be stored is answered by 503, after which clients ask again; a defect by 500."""
    arguments = {"QueueUrl": url, "MessageBody": "a"}
    between.instead(Messages.append, failing(StoreUnavailable("away", outcome="unknown")))
    reply = sqs.ask("SendMessage", **arguments)
    assert (reply.status, reply.headers["Retry-After"]) == (503, "1")
    assert sqs.expect_failure("SendMessage", **arguments) == "ServiceUnavailable"
    between.instead(Messages.append, failing(ValueError("a secret of ours")))
    reply = sqs.ask("SendMessage", **arguments)
    assert (reply.status, json.loads(reply.body)["__type"]) == (500, "com.amazonaws.sqs#InternalFailure")
    assert "secret" not in reply.text


SEND, BATCH, RECEIVE, INVALID = "SendMessage", "SendMessageBatch", "ReceiveMessage", "InvalidParameterValue"
BAD_ATTRIBUTES: list[dict[str, Any]] = [
    *({name: value("String", "a")} for name in ("", ".a", "a b", "AWS.a")),
    {"a": {"DataType": "String"}},
    {"a": value("String", "")},
    {"a": value("Number", "four")},
    {"a": value("Binary", "!")},
    {"a": value("String." + "x" * 256, "a")},
    {"a": value("String", "a") | value("Binary", BYTES)},
    {str(number): value("String", "a") for number in range(11)},
]
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    (SEND, {}, "MissingParameter"),
    (SEND, {"MessageBody": 5}, INVALID),
    (SEND, {"MessageBody": "a\0"}, "InvalidMessageContents"),
    (SEND, {"MessageBody": "x" * (MEBIBYTE + 1)}, INVALID),
    (SEND, {"MessageBody": "a", "DelaySeconds": 901}, INVALID),
    (SEND, {"MessageBody": "a", "DelaySeconds": "x"}, INVALID),
    (SEND, {"MessageBody": "a", "MessageDeduplicationId": "d"}, INVALID),
    (SEND, {"MessageBody": "a", "MessageGroupId": "a b"}, INVALID),
    *((SEND, {"MessageBody": "a", "MessageAttributes": each}, INVALID) for each in BAD_ATTRIBUTES),
    (BATCH, {"Entries": []}, "EmptyBatchRequest"),
    (BATCH, {"Entries": entries(*map(str, range(11)))}, "TooManyEntriesInBatchRequest"),
    (BATCH, {"Entries": entries("a", "a")}, "BatchEntryIdsNotDistinct"),
    (BATCH, {"Entries": entries("a b")}, "InvalidBatchEntryId"),
    (BATCH, {"Entries": [one | {"MessageBody": "x" * MEBIBYTE} for one in entries("a", "b")]}, "BatchRequestTooLong"),
    (BATCH, {"Entries": [{"MessageBody": "a"}]}, "MissingParameter"),
    *((RECEIVE, {"MaxNumberOfMessages": number}, INVALID) for number in (0, 11)),
    *((RECEIVE, {"VisibilityTimeout": seconds}, INVALID) for seconds in (-1, 43_201)),
    (RECEIVE, {"WaitTimeSeconds": 21}, INVALID),
    *((action, {}, "InvalidAction") for action in ("", "sendmessage", "DeleteEverything", "__init__")),
]


def test_what_is_refused(sqs: Sqs, url: str) -> None:
    """An invalid message, batch, receive or action is refused as a whole, and nothing is stored."""
    for action, arguments, error in REFUSED:
        assert sqs.expect_failure(action, QueueUrl=url, **arguments) == error, (action, str(arguments)[:80])
    assert receive(sqs, url) == []
