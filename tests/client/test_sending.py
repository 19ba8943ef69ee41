"""What is sent for each kind of message, and how any number of messages becomes requests."""

from __future__ import annotations

import base64
import itertools
import json
import math
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from fractions import Fraction
from typing import Any

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuey.client import Conflict, ConnectionLost, InvalidArgument, Outgoing, Receipt
from queuey.client.calls.send_calls import Batcher
from tests.client.conftest import Connect
from tests.client.scripted import Script, break_connection, message_id, ok, receipts


def test_text_and_bytes_travel_as_they_are(connect: Connect) -> None:
    """A body is sent byte for byte, its description in headers."""
    script = Script(receipts())
    client = connect(script)
    client.send("q", "Grüße")
    client.send(
        "q", b"\x00\xff", ttl=60, key="ann", delay=0.0000001, headers={"Trace": "a b"}, content_type="image/png"
    )
    client.send("q", "x", partition=2, after=Receipt(message_id(7), "7.0", 1))
    text, raw, placed = script.requests
    assert text.content == "Grüße".encode()
    assert "content-type" not in text.headers
    assert raw.content == b"\x00\xff"
    expected = {"x-ttl": "60", "x-message-key": "ann", "x-delay": "0.0000001", "x-header-trace": "a b"}
    assert expected.items() <= dict(raw.headers).items()
    assert raw.headers["content-type"] == "image/png"
    assert placed.headers["x-partition"] == "2"
    assert placed.headers["x-after"] == message_id(7)


@pytest.mark.parametrize(
    ("options", "item"),
    [
        ({"json": {"a": [1, None]}}, {"body": {"a": [1, None]}}),
        ({"json": None}, {"body": None}),
        ({"body": "{}", "content_type": "Application/JSON; charset=utf-8"}, None),
        ({"body": "x", "content_type": "text/plain; name=é"}, None),
        ({"body": "x", "headers": {"trace": "é"}}, None),
        ({"body": "x", "headers": {"trace": ""}}, None),
        ({"body": "x", "headers": {"under_score": "x"}}, None),
        ({"body": "x", "headers": {"trace": "a\r\nX-TTL: 1"}}, None),
        ({"body": "x", "key": " padded "}, {"body": "x", "message_key": " padded "}),
        (
            {"body": b"\xff", "key": "é"},
            {"body": base64.b64encode(b"\xff").decode(), "encoding": "base64", "message_key": "é"},
        ),
    ],
)
def test_what_headers_cannot_carry_travels_as_json(
    connect: Connect, options: dict[str, Any], item: dict[str, Any] | None
) -> None:
    """Nothing is changed or lost on the way: what HTTP headers would change goes in a batch of one."""
    script = Script(receipts())
    connect(script).send("q", after=message_id(3), **options)
    (request,) = script.requests
    assert request.headers["content-type"] == "application/json"
    assert request.headers["x-after"] == message_id(3)
    assert script.sent() == {"messages": [options if item is None else item]}


def answer_batch(script: Script) -> httpx2.Response:
    """Answers a batch with ids that continue where the last batch ended."""
    posted = [len(json.loads(request.content)["messages"]) for request in script.requests]
    return receipts(posted[-1], first=sum(posted[:-1]) + 1)


def test_many_messages_become_full_batches_in_order(connect: Connect) -> None:
    """A thousand messages at most go out at once; each batch comes after the one before; receipts keep the order."""
    script = Script(lambda _: answer_batch(script))
    stored = connect(script).send_many("q", (str(n) for n in range(2500)), after=message_id(9))
    assert [len(script.sent(n)["messages"]) for n in range(3)] == [1000, 1000, 500]
    sent = [item["body"] for n in range(3) for item in script.sent(n)["messages"]]
    assert sent == [str(n) for n in range(2500)]
    assert [receipt.id for receipt in stored] == [message_id(n) for n in range(1, 2501)]
    assert [request.headers["x-after"] for request in script.requests] == [message_id(n) for n in (9, 1000, 2000)]


def test_delayed_messages_do_not_hold_back_the_next_batch(connect: Connect) -> None:
    """The next batch comes after the last message that is not delayed, as ids of delayed ones lie ahead of now."""
    script = Script(lambda _: answer_batch(script))
    messages = [Outgoing("a"), Outgoing("b", delay=60), Outgoing("c", delay=60), Outgoing("d")]
    list(connect(script).send_iter("q", messages, batch=2))
    assert script.requests[1].headers["x-after"] == message_id(1)


def test_an_endless_feed_is_sent_one_batch_at_a_time(connect: Connect) -> None:
    """Only one batch is taken from the source ahead of what was stored, so memory stays bounded."""
    script = Script(lambda _: answer_batch(script))
    taken = itertools.count()
    sizes: list[int] = []

    def feed() -> Iterator[str]:
        for number in taken:
            sizes.append(number)
            yield "x"

    receipts_so_far = connect(script).send_iter("q", feed(), batch=10)
    assert script.requests == []
    for _ in range(25):
        next(receipts_so_far)
    assert len(script.requests) == 3
    assert sizes[-1] == 30
    receipts_so_far.close()


def test_a_failed_batch_tells_what_was_stored_before(connect: Connect) -> None:
    """The error of a later batch carries the receipts of the earlier ones."""
    script = Script(lambda _: answer_batch(script), break_connection)
    with pytest.raises(ConnectionLost) as caught:
        connect(script).send_many("q", ["x"] * 1001)
    assert [receipt.id for receipt in caught.value.receipts] == [message_id(n) for n in range(1, 1001)]


@given(sizes=st.lists(st.integers(0, 300), max_size=60), count=st.integers(1, 20), room=st.integers(60, 400))
def test_batches_lose_nothing_and_keep_the_limits(sizes: list[int], count: int, room: int) -> None:
    """Batches hold all messages in order, within both limits unless one message alone exceeds them."""
    batcher = Batcher(count, room)
    chunks = [chunk for size in sizes if (chunk := batcher.add("x" * size)) is not None]
    if (last := batcher.flush()) is not None:
        chunks.append(last)
    bodies = [[len(item["body"]) for item in json.loads(chunk.content)["messages"]] for chunk in chunks]
    assert [size for batch in bodies for size in batch] == sizes
    for chunk, batch in zip(chunks, bodies, strict=True):
        assert 1 <= len(batch) <= count
        assert len(chunk.undelayed_flags) == len(batch)
        assert len(chunk.content) <= room or len(batch) == 1
    assert batcher.flush() is None


def test_repeated_after_a_lost_answer(connect: Connect) -> None:
    """A call whose answer was lost is sent again; a conflict is not."""
    script = Script(
        break_connection, receipts(), break_connection, ok(messages=[]), ok(status=409, error_msg={"NameTaken": "x"})
    )
    named = connect(script).named("q")
    assert named.set("n", "x").id == message_id(1)
    named.delete("n")
    with pytest.raises(Conflict):
        named.create("n", "x")
    assert [request.method for request in script.requests] == ["PUT", "PUT", "DELETE", "DELETE", "POST"]
    assert script.requests[0].url.raw_path == b"/v1/acme/q/named/n"


@pytest.mark.parametrize("count", [1, 1000])
def test_a_key_stands_for_a_whole_batch(connect: Connect, count: int) -> None:
    """Messages with one key go out in one request, which is repeated as it was."""
    script = Script(break_connection, receipts(count))
    stored = connect(script, idempotent=False).send_many("q", ["x"] * count, idempotency_key="4711")
    assert len(stored) == count
    first, second = script.requests
    assert (first.content, first.headers["idempotency-key"]) == (second.content, '"4711"')
    assert second.headers["idempotency-key"] == '"4711"'


# What is refused before anything is sent, in calls that read, too


WRONG_MESSAGES: list[tuple[Any, dict[str, Any], str]] = [
    ("q", {}, "either a body or a JSON value; neither"),
    ("q", {"body": "x", "json": 1}, "either a body or a JSON value; both"),
    ("q", {"body": 5}, "body"),
    ("q", {"json": float("nan")}, "not a JSON value"),
    ("q", {"json": {1, 2}}, "not a JSON value"),
    ("q", {"json": "\ud800"}, "not a JSON value"),
    ("q", {"body": "\ud800", "key": "é"}, "no JSON form"),
    ("q", {"body": "x", "headers": {1: "a"}}, "header"),
    ("q", {"body": "x", "headers": "a=b"}, "headers"),
    ("q", {"body": "x", "key": 5}, "key"),
    ("q", {"body": "x", "content_type": 5}, "content_type"),
    ("q", {"body": "x", "ttl": "7d"}, "ttl is '7d': give seconds as a number"),
    ("q", {"body": "x", "ttl": Fraction(30)}, "ttl is Fraction(30, 1): give seconds as a number"),
    ("q", {"body": "x", "delay": math.nan}, "delay is nan: give seconds as a number"),
    ("q", {"body": "x", "partition": "2"}, "partition is '2': give a whole number"),
    ("q", {"body": "x", "partition": 1.5}, "partition is 1.5: give a whole number"),
    ("q", {"body": "x", "partition": True}, "partition is True: give a whole number"),
    ("q", {"body": "x", "headers": {"a": 1}}, "header 'a' is 1: give a string"),
    (5, {"body": "x"}, "queue is 5: give a string"),
    ("a/b", {"body": "x"}, "'a/b' is not a valid queue name: use at least one character, without \"/\""),
]
"""Queues and fields of messages, and what the error says."""
ONE_BODY, ONE_REQUEST = "which is one body", "An idempotency key is for one request"
KEYS: tuple[Any, ...] = ("", "x" * 256, "Köln", "a\nb", 5)
POINTS: tuple[tuple[Any, str], ...] = (
    (True, "True is not a position"),
    (datetime(2026, 1, 1), "has no time zone"),  # noqa: DTZ001
    (datetime(1969, 1, 1, tzinfo=UTC), "is before 1970"),
    (object(), "is not a position"),
    ({0: "x"}, "0 is not a partition"),
)
POSITIONS = ("", "a,2:b", f"{message_id(1)},2:{message_id(2)}", "1.5", "\ud800")
WRONG_CALLS: list[tuple[Callable[[Any], object], str]] = [
    *((lambda client, key=key: client.send("q", "x", idempotency_key=key), "idempotency_key is") for key in KEYS),
    *((lambda client, point=point: client.read("q", since=point), says) for point, says in POINTS),
    *((lambda client, text=text: client.read("q", since={1: text}), "is not a message id") for text in POSITIONS),
    *((lambda client, text=text: client.send_many("q", text), ONE_BODY) for text in ("abc", b"bytes", "")),
    (lambda client: client.send_many("q", "abc", idempotency_key="k"), ONE_BODY),
    (lambda client: client.send_many("q", [], idempotency_key="k"), ONE_REQUEST),
    (lambda client: client.send_many("q", ["x"] * 1001, idempotency_key="k"), ONE_REQUEST),
    (lambda client: client.send_many("q", ["x" * (5 << 20)] * 2, idempotency_key="k"), ONE_REQUEST),
    (lambda client: client.send("q", "\ud800"), "the body cannot be encoded as UTF-8"),
    (lambda client: client.send("q", "x", after="no id"), "'no id' is not a message id"),
    (lambda client: client.put("q", [], "x"), "needs the id of at least one message"),
    (lambda client: client.put("q", "messages", "x"), "is not a message id"),
    (lambda client: client.put("q", message_id(1), "x", partition=2), "partition"),
    (lambda client: client.put("q", message_id(1), "x", key="k"), "key"),
    (lambda client: client.put("q", message_id(1), "x", delay=1), "delay"),
    (lambda client: client.put("q", message_id(1), "x", headers={"a": "é"}), "header"),
    (lambda client: next(client.job_queue("q").claim(ttl=None)), "ttl is None: give seconds as a number"),
    (lambda client: next(client.job_queue("q").claim(ttl=1)), "ttl is 1.0: a claim of less than 2 s"),
    (lambda client: next(client.job_queue("q").claim(ttl=math.nan)), "ttl is nan: give seconds as a number"),
    (lambda client: next(client.job_queue("q").claim(idle="30")), "idle is '30': give seconds as a number"),
    (lambda client: next(client.job_queue("q").claim(idle=-1)), "idle is -1: use 0 or more seconds"),
]


def test_what_is_wrong_is_said(connect: Connect) -> None:
    """Whatever cannot be sent is an error that names it, alone and in a batch, and nothing is sent."""
    script = Script()
    client = connect(script)
    for queue, options, says in WRONG_MESSAGES:
        with pytest.raises(InvalidArgument, match=re.escape(says)):
            client.send(queue, **options)
        with pytest.raises(InvalidArgument, match=re.escape(says)):
            client.send_many(queue, [Outgoing(**options), Outgoing("y")])
    for call, says in WRONG_CALLS:
        with pytest.raises(InvalidArgument, match=re.escape(says)):
            call(client)
    client.job_queue("q").claim(idle=math.inf)
    assert script.requests == []
