"""Queues of SQS: names, attributes, tags, dead letters, moves and lists."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from queuey.storage import Store, bridge
from tests.facades.sqs.signing import HOST, Sqs

NUMBERS = {
    "VisibilityTimeout": (0, 43_200, "30"),
    "DelaySeconds": (0, 900, "0"),
    "ReceiveMessageWaitTimeSeconds": (0, 20, "0"),
    "MaximumMessageSize": (1024, 1_048_576, "1048576"),
    "MessageRetentionPeriod": (60, 1_209_600, "345600"),
}


def attributes(sqs: Sqs, url: str, *names: str) -> dict[str, str]:
    values: dict[str, str] = sqs("GetQueueAttributes", QueueUrl=url, AttributeNames=names or ["All"]).get(
        "Attributes", {}
    )
    return values


def arn(name: str) -> str:
    return f"arn:aws:sqs:eu-west-1:000000000000:{name}"


def redrive(name: str, count: object = 2) -> str:
    return json.dumps({"deadLetterTargetArn": arn(name), "maxReceiveCount": count})


@pytest.mark.parametrize(
    ("told", "scheme"), [("https", "https"), ("http", "http"), ("javascript", "http"), ("", "http")]
)
def test_urls_behind_a_proxy(sqs: Sqs, told: str, scheme: str) -> None:
    """The URL of a queue is that of the proxy where TLS ends: the SDK for JavaScript sends its requests there."""
    sqs.create("jobs")
    request = sqs.sign_request(b'{"QueueName":"jobs"}', {"x-amz-target": "AmazonSQS.GetQueueUrl"})
    request.headers["X-Forwarded-Proto"] = told
    assert json.loads(sqs.send(request).body) == {"QueueUrl": f"{scheme}://{HOST}/000000000000/jobs"}


def test_numbers(sqs: Sqs) -> None:
    """Each number has its default and its limits, at creation and later."""
    url, invalid = sqs.create("jobs"), "InvalidAttributeValue"
    for name, (least, most, preset) in NUMBERS.items():
        assert attributes(sqs, url, name) == {name: preset}
        for value in (least, most):
            sqs("SetQueueAttributes", QueueUrl=url, Attributes={name: str(value)})
            assert attributes(sqs, url, name) == {name: str(value)}
        for text in (str(least - 1), str(most + 1), "", "x", "1.5", "٣"):
            assert sqs.expect_failure("SetQueueAttributes", QueueUrl=url, Attributes={name: text}) == invalid
            assert sqs.expect_failure("CreateQueue", QueueName="q2", Attributes={name: text}) == invalid
        assert attributes(sqs, url, name) == {name: str(most)}


def test_all_attributes(sqs: Sqs) -> None:
    """A new queue has all attributes; those that are not requested are not shown."""
    began = int(time.time())
    url = sqs.create("jobs")
    values = attributes(sqs, url)
    assert began <= int(values.pop("CreatedTimestamp")) <= int(values.pop("LastModifiedTimestamp")) <= time.time() + 1
    counts = ("ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible")
    assert values == {
        "QueueArn": arn("jobs"),
        "SqsManagedSseEnabled": "false",
        **{name: preset for name, (_, _, preset) in NUMBERS.items()},
        **dict.fromkeys((*counts, "ApproximateNumberOfMessagesDelayed"), "0"),
    }
    assert "Attributes" not in sqs("GetQueueAttributes", QueueUrl=url)
    assert sqs.expect_failure("GetQueueAttributes", QueueUrl=url, AttributeNames=["Colour"]) == "InvalidAttributeName"


def test_counts(sqs: Sqs) -> None:
    """Messages that wait, are in flight and are delayed are counted."""
    url = sqs.create("jobs")
    for delay in (0, 0, 0, 900):
        sqs("SendMessage", QueueUrl=url, MessageBody="a", DelaySeconds=delay)
    [message] = sqs("ReceiveMessage", QueueUrl=url)["Messages"]
    names = ("", "NotVisible", "Delayed")

    def counts() -> list[str]:
        values = attributes(sqs, url)
        return [values[f"ApproximateNumberOfMessages{name}"] for name in names]

    assert counts() == ["2", "1", "1"]
    sqs("ChangeMessageVisibility", QueueUrl=url, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=600)
    assert counts() == ["2", "1", "1"]


def test_created_again(sqs: Sqs) -> None:
    """An existing queue is returned, unless other attributes are given; tags do not count."""
    url = sqs.create("jobs", DelaySeconds="5")
    assert sqs.create("jobs", DelaySeconds="5") == url == sqs.create("jobs")
    assert sqs("CreateQueue", QueueName="jobs", tags={"a": "b"})["QueueUrl"] == url
    assert sqs("ListQueueTags", QueueUrl=url) == {}
    assert sqs.expect_failure("CreateQueue", QueueName="jobs", Attributes={"DelaySeconds": "6"}) == "QueueNameExists"
    assert attributes(sqs, url, "DelaySeconds") == {"DelaySeconds": "5"}


def test_created_again_without_its_redrive_policy(sqs: Sqs) -> None:
    """A blank RedrivePolicy is that of a queue without a dead-letter queue, and of no other queue."""
    sqs.create("dead")
    policy = json.dumps({"deadLetterTargetArn": arn("dead"), "maxReceiveCount": 3})
    url = sqs.create("jobs", RedrivePolicy=policy)
    assert sqs.create("jobs", RedrivePolicy=policy) == url
    assert sqs.expect_failure("CreateQueue", QueueName="jobs", Attributes={"RedrivePolicy": ""}) == "QueueNameExists"
    assert sqs.create("dead", RedrivePolicy="") == sqs.create("dead")


def test_names(sqs: Sqs) -> None:
    """Names have 1 to 80 letters, digits, - and _."""
    for name in ("", "a b", "a" * 81, "ä", "a.b", "_a", "a/b", "a.fifo"):
        assert sqs.expect_failure("CreateQueue", QueueName=name) == "InvalidParameterValue"
    assert sqs.create("A-z_" + "0" * 76)


def test_no_such_queue(sqs: Sqs) -> None:
    """Every action on a missing queue says so, except for its deletion."""
    url = "http://queuey.test/000000000000/none"
    cases: dict[str, dict[str, object]] = {
        "GetQueueAttributes": {},
        "SendMessage": {"MessageBody": "a"},
        "ReceiveMessage": {},
        "PurgeQueue": {},
        "DeleteQueue": {},
        "ListQueueTags": {},
        "SetQueueAttributes": {"Attributes": {"DelaySeconds": "1"}},
    }
    for action, arguments in cases.items():
        assert sqs.expect_failure(action, QueueUrl=url, **arguments) == "QueueDoesNotExist", action
    assert sqs.expect_failure("GetQueueUrl", QueueName="none") == "QueueDoesNotExist"
    url = sqs.create("none")
    for action in ("AddPermission", "RemovePermission"):
        permission = {"QueueUrl": url, "Label": "a", "AWSAccountIds": ["1"], "Actions": ["*"]}
        assert sqs.expect_failure(action, **permission) == "UnsupportedOperation"
    sqs("DeleteQueue", QueueUrl=url)
    assert sqs.expect_failure("SendMessage", QueueUrl=url, MessageBody="a") == "QueueDoesNotExist"


def test_bad_attributes(sqs: Sqs) -> None:
    """A value that an attribute cannot have is named; one of another kind, unknown or read-only cannot be set."""
    sqs.create("dead")
    url = sqs.create("jobs")
    before = attributes(sqs, url)
    value, name = "InvalidAttributeValue", "InvalidAttributeName"
    for attribute, text, error in (
        ("Policy", "{}", value),
        ("KmsMasterKeyId", "alias/aws/sqs", value),
        ("SqsManagedSseEnabled", "perhaps", value),
        ("RedrivePolicy", "{", value),
        ("RedrivePolicy", '{"deadLetterTargetArn":"jobs"}', value),
        ("RedrivePolicy", redrive("dead", 0), value),
        ("RedriveAllowPolicy", '{"redrivePermission":"byQueue","sourceQueueArns":["jobs"]}', value),
        ("RedriveAllowPolicy", json.dumps({"redrivePermission": "byQueue", "sourceQueueArns": [arn("a")] * 11}), value),
        *(
            (other, "true", name)
            for other in ("Colour", "ContentBasedDeduplication", "FifoThroughputLimit", "QueueArn")
        ),
    ):
        assert sqs.expect_failure("SetQueueAttributes", QueueUrl=url, Attributes={attribute: text}) == error
    assert attributes(sqs, url) == before
    for other in ("Policy", "KmsMasterKeyId"):
        sqs("SetQueueAttributes", QueueUrl=url, Attributes={other: ""})


def test_tags(sqs: Sqs) -> None:
    """Tags are added, changed and removed; there are 50 at most."""
    url = sqs.create("jobs")
    sqs("TagQueue", QueueUrl=url, Tags={"a": "1", "b": ""})
    sqs("TagQueue", QueueUrl=url, Tags={"a": "2", "c": "é" * 256})
    sqs("UntagQueue", QueueUrl=url, TagKeys=["b", "none"])
    assert sqs.expect_failure("TagQueue", QueueUrl=url, Tags={}) == "MissingParameter"
    assert sqs.expect_failure("UntagQueue", QueueUrl=url, TagKeys=[]) == "MissingParameter"
    assert sqs("ListQueueTags", QueueUrl=url)["Tags"] == {"a": "2", "c": "é" * 256}
    for tags in ({str(number): "" for number in range(49)}, {"": "a"}, {"a" * 129: ""}, {"a": "b" * 257}):
        assert sqs.expect_failure("TagQueue", QueueUrl=url, Tags=tags) == "InvalidParameterValue"
    sqs("SetQueueAttributes", QueueUrl=url, Attributes={"DelaySeconds": "7"})
    assert sqs("ListQueueTags", QueueUrl=url)["Tags"] == {"a": "2", "c": "é" * 256}


def test_lists(sqs: Sqs) -> None:
    """Queues are listed by prefix and page by page, each once."""
    names = [f"jobs-{number:02}" for number in range(7)]
    for name in (*names, "jobs", "other", "a"):
        sqs.create(name)

    def listed(**given: Any) -> list[str]:  # noqa: ANN401 - what the action takes
        all_names: list[str] = []
        token: dict[str, str] = {}
        while True:
            page = sqs("ListQueues", **given, **token)
            urls = page.get("QueueUrls", [])
            all_names += [url.rpartition("/")[2] for url in urls]
            assert len(urls) <= given.get("MaxResults", 1000)
            if "NextToken" not in page:
                return all_names
            token = {"NextToken": page["NextToken"]}

    assert listed() == listed(MaxResults=1) == sorted((*names, "jobs", "other", "a"))
    assert listed(QueueNamePrefix="jobs-", MaxResults=3) == listed(QueueNamePrefix="jobs-") == names
    assert sqs("ListQueues", QueueNamePrefix="none") == {}
    for given in ({"MaxResults": 0}, {"MaxResults": 1001}, {"NextToken": "é"}, {"NextToken": "a"}):
        assert sqs.expect_failure("ListQueues", **given) == "InvalidParameterValue"


def test_dead_letters(sqs: Sqs) -> None:
    """After the maximum of receives a message is a dead letter, with its body, id, attributes and origin."""
    dead = sqs.create("dead")
    url = sqs.create("jobs", RedrivePolicy=redrive("dead", "2"), VisibilityTimeout="0")
    assert json.loads(attributes(sqs, url)["RedrivePolicy"]) == {
        "deadLetterTargetArn": arn("dead"),
        "maxReceiveCount": 2,
    }
    value = {"DataType": "String", "StringValue": "é"}
    sent = sqs("SendMessage", QueueUrl=url, MessageBody="bad", MessageAttributes={"a": value})
    received = [sqs("ReceiveMessage", QueueUrl=url, AttributeNames=["SentTimestamp"]) for _ in range(3)]
    assert ["Messages" in each for each in received] == [True, True, False]
    requested = {"AttributeNames": ["All"], "MessageAttributeNames": ["All"], "WaitTimeSeconds": 5}
    [letter] = sqs("ReceiveMessage", QueueUrl=dead, **requested)["Messages"]
    assert (letter["Body"], letter["MessageAttributes"]) == ("bad", {"a": value})
    assert letter["MessageId"] == sent["MessageId"]
    assert letter["Attributes"]["SentTimestamp"] == received[0]["Messages"][0]["Attributes"]["SentTimestamp"]
    assert letter["Attributes"]["DeadLetterQueueSourceArn"] == arn("jobs")
    assert letter["Attributes"]["ApproximateReceiveCount"] == "1"
    assert sqs("ListDeadLetterSourceQueues", QueueUrl=dead)["queueUrls"] == [url]
    sqs("SetQueueAttributes", QueueUrl=url, Attributes={"RedrivePolicy": ""})
    assert "RedrivePolicy" not in attributes(sqs, url)
    assert sqs("ListDeadLetterSourceQueues", QueueUrl=dead)["queueUrls"] == []


def test_who_may_have_a_queue_for_dead_letters(sqs: Sqs) -> None:
    """A policy of the queue for dead letters is kept; a missing queue cannot be one."""
    dead, url = sqs.create("dead"), sqs.create("jobs")
    arguments = {"QueueUrl": url, "Attributes": {"RedrivePolicy": redrive("dead")}}
    other = {"QueueUrl": url, "Attributes": {"RedrivePolicy": redrive("none")}}
    assert sqs.expect_failure("SetQueueAttributes", **other) == "InvalidParameterValue"
    for policy, allowed in (
        ({"redrivePermission": "denyAll"}, False),
        ({"redrivePermission": "byQueue", "sourceQueueArns": [arn("others")]}, False),
        ({"redrivePermission": "byQueue", "sourceQueueArns": [arn("jobs")]}, True),
        ({"redrivePermission": "allowAll"}, True),
    ):
        text = json.dumps(policy)
        sqs("SetQueueAttributes", QueueUrl=dead, Attributes={"RedriveAllowPolicy": text})
        assert json.loads(attributes(sqs, dead)["RedriveAllowPolicy"]) == policy
        if allowed:
            sqs("SetQueueAttributes", **arguments)
        else:
            assert sqs.expect_failure("SetQueueAttributes", **arguments) == "InvalidParameterValue"


def test_moves(sqs: Sqs, store: Store) -> None:
    """Dead letters are moved back to where they came from, or elsewhere; the task is listed."""
    dead, url = sqs.create("dead"), sqs.create("jobs", RedrivePolicy=redrive("dead", 1), VisibilityTimeout="0")
    for number in range(3):
        sqs("SendMessage", QueueUrl=url, MessageBody=str(number))
    for _ in range(5):
        sqs("ReceiveMessage", QueueUrl=url, MaxNumberOfMessages=10)
    assert sqs("StartMessageMoveTask", SourceArn=arn("dead"))["TaskHandle"]
    deadline = time.monotonic() + 30
    while (task := sqs("ListMessageMoveTasks", SourceArn=arn("dead"))["Results"][0])["Status"] == "RUNNING":
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert (task["Status"], task["ApproximateNumberOfMessagesMoved"]) == ("COMPLETED", 3)
    assert (task["SourceArn"], task["DestinationArn"]) == (arn("dead"), arn("jobs"))
    back = sqs("ReceiveMessage", QueueUrl=url, MaxNumberOfMessages=10, AttributeNames=["All"])["Messages"]
    assert sorted(one["Body"] for one in back) == ["0", "1", "2"]
    assert not any("DeadLetterQueueSourceArn" in one["Attributes"] for one in back)
    assert "Messages" not in sqs("ReceiveMessage", QueueUrl=dead)


def test_moves_that_cannot_be(sqs: Sqs) -> None:
    """A move needs two existing queues; a rate is refused, and an unknown task is not found."""
    sqs.create("dead")
    sqs.create("jobs")
    start = "StartMessageMoveTask"
    assert sqs.expect_failure(start, SourceArn=arn("dead")) == "InvalidParameterValue"
    missing = "ResourceNotFoundException"
    assert sqs.expect_failure(start, SourceArn=arn("none"), DestinationArn=arn("jobs")) == missing
    assert sqs.expect_failure(start, SourceArn=arn("dead"), DestinationArn=arn("none")) == missing
    assert sqs.expect_failure("ListMessageMoveTasks", SourceArn=arn("none")) == missing
    assert sqs.expect_failure(start, SourceArn="dead", DestinationArn=arn("jobs")) == "InvalidParameterValue"
    arguments = {"SourceArn": arn("dead"), "DestinationArn": arn("jobs")}
    assert sqs.expect_failure(start, **arguments, MaxNumberOfMessagesPerSecond=5) == "UnsupportedOperation"
    assert sqs.expect_failure("CancelMessageMoveTask", TaskHandle="bm9uZQ==") == missing
    assert sqs.expect_failure("CancelMessageMoveTask", TaskHandle="none") == "InvalidParameterValue"
    handle = sqs(start, **arguments)["TaskHandle"]
    assert sqs("CancelMessageMoveTask", TaskHandle=handle)["ApproximateNumberOfMessagesMoved"] == 0
    for most in (0, 11):
        assert (
            sqs.expect_failure("ListMessageMoveTasks", SourceArn=arn("dead"), MaxResults=most)
            == "InvalidParameterValue"
        )


def test_purged(sqs: Sqs) -> None:
    """A purge removes all messages; a receipt of before is of no use any more."""
    url = sqs.create("jobs")
    for _ in range(3):
        sqs("SendMessage", QueueUrl=url, MessageBody="a")
    [message] = sqs("ReceiveMessage", QueueUrl=url)["Messages"]
    sqs("PurgeQueue", QueueUrl=url)
    assert "Messages" not in sqs("ReceiveMessage", QueueUrl=url)
    handle = message["ReceiptHandle"]
    assert sqs.expect_failure("DeleteMessage", QueueUrl=url, ReceiptHandle=handle) == "ReceiptHandleIsInvalid"


def test_a_queue_of_version_1(sqs: Sqs, store: Store) -> None:
    """A queue that another protocol has made has the usual attributes."""
    from queuey.model.messages import QueueSpec  # noqa: PLC0415 - only here

    bridge.run(store.catalogue.create_queue("shop", "theirs", QueueSpec(ttl=100)))
    url = sqs("GetQueueUrl", QueueName="theirs")["QueueUrl"]
    values = attributes(sqs, url)
    assert (values["MessageRetentionPeriod"], values["VisibilityTimeout"]) == ("100", "30")
    sqs("SetQueueAttributes", QueueUrl=url, Attributes={"VisibilityTimeout": "9"})
    assert attributes(sqs, url, "VisibilityTimeout") == {"VisibilityTimeout": "9"}
    sqs("SendMessage", QueueUrl=url, MessageBody="a")
    assert sqs("ReceiveMessage", QueueUrl=url)["Messages"][0]["Body"] == "a"
