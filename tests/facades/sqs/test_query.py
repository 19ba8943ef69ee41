"""The Query protocol: forms in, XML out, for clients older than AWS JSON and for links."""

from __future__ import annotations

from hashlib import md5
from xml.etree import ElementTree as ET

import pytest

from tests.facades.sqs.signing import Sqs, xml_of

FIRST = "/000000000000/first"


def texts(root: ET.Element, path: str) -> list[str | None]:
    return [element.text for element in root.findall(path)]


@pytest.fixture
def first(sqs: Sqs) -> str:
    """Creates the queue ``first`` with an attribute and a tag; returns its URL."""
    fields = {"Attribute.1.Name": "VisibilityTimeout", "Attribute.1.Value": "10", "Tag.1.Key": "a", "Tag.1.Value": "b"}
    root = xml_of(sqs.form("CreateQueue", QueueName="first", **fields))
    assert root.tag == "CreateQueueResponse"
    assert root.findtext("ResponseMetadata/RequestId")
    url = root.findtext("CreateQueueResult/QueueUrl")
    assert url is not None
    assert url.endswith(FIRST)
    return url


def test_queues(sqs: Sqs, first: str) -> None:
    """Attributes, tags and lists are numbered elements; the queue may be named by the path."""
    root = xml_of(sqs.form("GetQueueAttributes", FIRST, **{"AttributeName.1": "VisibilityTimeout"}))
    assert texts(root, "GetQueueAttributesResult/Attribute/Name") == ["VisibilityTimeout"]
    assert texts(root, "GetQueueAttributesResult/Attribute/Value") == ["10"]
    root = xml_of(sqs.form("ListQueueTags", QueueUrl=first))
    assert (texts(root, "*/Tag/Key"), texts(root, "*/Tag/Value")) == (["a"], ["b"])
    assert xml_of(sqs.form("UntagQueue", QueueUrl=first, **{"TagKey.1": "a"})).tag == "UntagQueueResponse"
    assert texts(xml_of(sqs.form("ListQueues")), "ListQueuesResult/QueueUrl") == [first]
    assert texts(xml_of(sqs.form("GetQueueUrl", QueueName="first")), "*/QueueUrl") == [first]


def test_empty(sqs: Sqs, first: str) -> None:
    """An action with a result answers with its element even if it is empty: botocore looks inside."""
    parameters = {"MessageAttributeName": "", "AttributeName": "", "MessageSystemAttributeNames": ""}
    for action, fields in (("ReceiveMessage", parameters), ("ListQueues", {"QueueNamePrefix": "none"})):
        result = xml_of(sqs.form(action, FIRST, **fields)).find(f"{action}Result")
        assert result is not None
        assert len(result) == 0
    assert xml_of(sqs.form("PurgeQueue", QueueUrl=first)).find("PurgeQueueResult") is None
    for name in ("SendMessageBatchRequestEntry", "Entries"):
        error = xml_of(sqs.form("SendMessageBatch", FIRST, **{name: ""})).findtext("Error/Code")
        assert error == "AWS.SimpleQueueService.EmptyBatchRequest"


def test_messages(sqs: Sqs, first: str) -> None:
    """Messages with attributes are sent, received and deleted, one by one and in batches."""
    attribute = {"MessageAttribute.1.Name": "who", "MessageAttribute.1.Value.DataType": "String"}
    attribute["MessageAttribute.1.Value.StringValue"] = "me & you"
    sent = xml_of(sqs.form("SendMessage", FIRST, MessageBody="<a>é\r\n", **attribute))
    assert sent.findtext("SendMessageResult/MD5OfMessageBody") == md5("<a>é\r\n".encode()).hexdigest()
    fields = {"AttributeName.1": "All", "MessageAttributeName.1": "All"}
    got = xml_of(sqs.form("ReceiveMessage", FIRST, **fields)).find("ReceiveMessageResult/Message")
    assert got is not None
    assert got.findtext("Body") == "<a>é\r\n"
    assert got.findtext("MessageId") == sent.findtext("SendMessageResult/MessageId")
    assert got.findtext("MessageAttribute/Value/StringValue") == "me & you"
    assert got.findtext("MD5OfMessageAttributes") == sent.findtext("SendMessageResult/MD5OfMessageAttributes")
    assert "ApproximateReceiveCount" in texts(got, "Attribute/Name")
    handle = got.findtext("ReceiptHandle")
    changed = sqs.form("ChangeMessageVisibility", FIRST, ReceiptHandle=handle, VisibilityTimeout=60)
    assert xml_of(changed).tag == "ChangeMessageVisibilityResponse"
    assert xml_of(sqs.form("DeleteMessage", FIRST, ReceiptHandle=handle)).tag == "DeleteMessageResponse"
    assert xml_of(sqs.form("ReceiveMessage", FIRST)).find("ReceiveMessageResult/Message") is None


def test_batches(sqs: Sqs, first: str) -> None:
    """Entries are in order, failed ones beside the others."""
    entries: dict[str, str | None] = {}
    for number in range(1, 11):
        entry = f"SendMessageBatchRequestEntry.{number}"
        entries |= {f"{entry}.Id": f"m{number}", f"{entry}.MessageBody": f"body {number}"}
        entries |= {f"{entry}.MessageAttribute.1.Name": "n", f"{entry}.MessageAttribute.1.Value.DataType": "Number"}
        entries[f"{entry}.MessageAttribute.1.Value.StringValue"] = str(number) if number != 4 else "four"
    root = xml_of(sqs.form("SendMessageBatch", FIRST, **entries))
    done = [f"m{number}" for number in range(1, 11) if number != 4]
    assert texts(root, "SendMessageBatchResult/SendMessageBatchResultEntry/Id") == done
    assert texts(root, "SendMessageBatchResult/BatchResultErrorEntry/Id") == ["m4"]
    assert texts(root, "SendMessageBatchResult/BatchResultErrorEntry/SenderFault") == ["true"]
    messages = xml_of(sqs.form("ReceiveMessage", FIRST, MaxNumberOfMessages=10)).findall("*/Message")
    assert len(messages) == 9
    entries = {}
    for number, message in enumerate(messages, 1):
        entry = f"DeleteMessageBatchRequestEntry.{number}"
        entries |= {f"{entry}.Id": str(number), f"{entry}.ReceiptHandle": message.findtext("ReceiptHandle")}
    root = xml_of(sqs.form("DeleteMessageBatch", FIRST, **entries))
    assert len(texts(root, "*/DeleteMessageBatchResultEntry/Id")) == 9


def test_links(sqs: Sqs, first: str) -> None:
    """A link reads without any header."""
    sqs("SendMessage", QueueUrl=first, MessageBody="a")
    reply = sqs.send(sqs.make_presigned_request("ReceiveMessage", FIRST))
    assert xml_of(reply).findtext("*/Message/Body") == "a"


def test_errors(sqs: Sqs, first: str) -> None:
    """Errors have the codes of the Query protocol, a status and a text."""
    cases = {
        ("GetQueueUrl", "none"): (400, "AWS.SimpleQueueService.NonExistentQueue"),
        ("Unknown", ""): (400, "InvalidAction"),
        ("", ""): (400, "InvalidAction"),
        ("CreateQueue", "a b"): (400, "InvalidParameterValue"),
        ("GetQueueAttributes", ""): (400, "MissingParameter"),
    }
    for (action, name), expected in cases.items():
        reply = sqs.form(action, QueueName=name)
        root = xml_of(reply)
        assert (reply.status, root.findtext("Error/Code")) == expected
        assert (root.tag, root.findtext("Error/Type")) == ("ErrorResponse", "Sender")
        assert root.findtext("Error/Message")
        assert root.findtext("RequestId") == reply.headers["x-amzn-requestid"]


@pytest.mark.parametrize(
    "body",
    [
        b"Action=SendMessage&Action=PurgeQueue",
        b"Action=SendMessage&MessageAttribute.x.Name=a",
        b"Action=SendMessage&MessageAttribute.1.Value=a",
        b"Action=SendMessage&MessageAttribute." + b"1" * 5000 + b".Name=a",
        b"Action=SendMessage&MessageBody=%ff",
        b"Action=SendMessage&a=1&a.b=1",
        b"Action=SendMessage&" + b".".join([b"a"] * 500) + b"=1",
        b"Action=SendMessage" + b"&a=1" * 3000,
    ],
)
def test_what_is_no_request(sqs: Sqs, first: str, body: bytes) -> None:
    """What cannot be read is refused, and stores nothing."""
    reply = sqs.send(sqs.sign_request(body, {"content-type": "application/x-www-form-urlencoded"}, FIRST))
    assert reply.status == 400, reply.text
    assert xml_of(reply).findtext("Error/Message")
    assert "Messages" not in sqs("ReceiveMessage", QueueUrl=first)


def test_what_is_no_json(sqs: Sqs) -> None:
    """AWS JSON that cannot be read, or that is for another service, is refused."""
    for body in (b"{", b"[]", b"\xff", b'"a"', b"[" * 100_000):
        reply = sqs.send(sqs.sign_request(body, {"x-amz-target": "AmazonSQS.ListQueues"}))
        assert (reply.status, reply.headers["x-amzn-query-error"]) == (400, "SerializationException;Sender")
    reply = sqs.send(sqs.sign_request(b"{}", {"x-amz-target": "DynamoDB.ListTables"}))
    assert (reply.status, reply.headers["x-amzn-query-error"]) == (400, "InvalidAction;Sender")


def test_characters_that_xml_cannot_have(sqs: Sqs, first: str) -> None:
    """A body of another protocol may have any character; those that XML cannot have are replaced."""
    service = sqs.caller.app.service
    from queuey.messages.posts import Draft  # noqa: PLC0415 - only here

    queue = service.core.run(service.find("shop", "first"))
    service.core.run(service.messages.post(queue, [Draft("a\0\x1bb")]))
    assert xml_of(sqs.form("ReceiveMessage", FIRST)).findtext("*/Message/Body") == "a\ufffd\ufffdb"
    assert first
