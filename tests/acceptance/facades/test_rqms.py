"""The facade of RQMS on a real service: every call, every error, and what the original lost."""

from __future__ import annotations

import json
import threading
import time
from typing import Any
from urllib.parse import quote

import pytest

from queuey.client import Client
from queuey.model.messages import MAX_TTL
from tests.acceptance.facades.calls import WAIT, Facade, Reply
from tests.servers.served import Served

LONG_LOCK_SECONDS = 3600
"""Seconds of a lock that lasts as long as the tests."""


@pytest.fixture
def rqms(served: Served) -> Facade:
    return Facade(served.port, "/rqms")


def add(rqms: Facade, queue: str, name: str, value: object = 1) -> Reply:
    return rqms.call("POST", f"/{queue}?id={quote(name)}", json.dumps(value).encode())


def fetch(rqms: Facade, queue: str, count: int = 1, seconds: float = LONG_LOCK_SECONDS) -> list[dict[str, Any]]:
    reply = rqms.call("GET", f"/{queue}?count={count}&time={seconds:f}")
    assert (reply.status, reply.headers.get_content_type()) == (200, "application/json")
    fetched = json.loads(reply.body)
    assert fetched.keys() == {"items"}
    assert all(item.keys() == {"ticket", "value"} for item in fetched["items"])
    items: list[dict[str, Any]] = fetched["items"]
    return items


def fetch_some(rqms: Facade, queue: str, seconds: float = LONG_LOCK_SECONDS) -> list[dict[str, Any]]:
    """Fetches until an item is available; returns a list of it. If a short lock ends before the answer: 503."""
    end = time.monotonic() + WAIT
    while (
        reply := rqms.call("GET", f"/{queue}?count=1&time={seconds:f}")
    ).status == 503 or b"ticket" not in reply.body:
        assert time.monotonic() < end
    items: list[dict[str, Any]] = json.loads(reply.body)["items"]
    return items


def finish(rqms: Facade, queue: str, item: dict[str, Any]) -> Reply:
    return rqms.call("DELETE", f"/{queue}", item["ticket"].encode())


def test_calls(rqms: Facade, native: Client, queue: str) -> None:
    """An item is posted, fetched with a ticket, locked, and removed by the ticket; the answers are the original's."""
    posted = add(rqms, queue, "item-1", {"a": [1, None, "é"]})
    assert (posted.status, posted.body) == (201, b"It shall be done.")
    assert posted.headers["Content-Type"] == "text/html; charset=utf-8"
    [item] = fetch(rqms, queue, 5)
    assert item["value"] == {"a": [1, None, "é"]}
    name, revision = json.loads(item["ticket"])
    assert (name, bool(revision)) == ("item-1", True)
    assert fetch(rqms, queue) == []
    done = finish(rqms, queue, item)
    assert (done.status, done.body) == (200, b"Well done, sir!")
    assert finish(rqms, queue, item).status == 409
    info = native.info(queue)
    assert (info.partitions, info.ttl, info.on_ack, info.count) == (1, MAX_TTL, "delete", 0)


def test_numbers_keep_their_digits(rqms: Facade, queue: str) -> None:
    """A number is not rounded, as long as it is."""
    digits = b"123456789012345678901234567890.50"
    assert rqms.call("POST", f"/{queue}?id=x", b'{ "n" : ' + digits + b" }").status == 201
    assert digits in rqms.call("GET", f"/{queue}").body


def test_posted_again(rqms: Facade, queue: str) -> None:
    """The same id with the same value is 201 again and stored once; with another value it is 409, until it is done."""
    assert [add(rqms, queue, "x", {"n": 1}).status for _ in range(3)] == [201] * 3
    assert rqms.call("POST", f"/{queue}?id=x", b'{ "n" :\n1}').status == 201
    refused = add(rqms, queue, "x", {"n": 2})
    assert (refused.status, json.loads(refused.body)["error"]) == (409, True)
    [item] = fetch(rqms, queue, 10)
    assert item["value"] == {"n": 1}
    assert add(rqms, queue, "x", {"n": 2}).status == 409
    assert finish(rqms, queue, item).status == 200
    assert add(rqms, queue, "x", {"n": 2}).status == 201
    assert [item["value"] for item in fetch(rqms, queue, 10)] == [{"n": 2}]


def test_set(rqms: Facade, queue: str) -> None:
    """A named item has its newest value; the holder of a lock on an older one learns that when removing it."""
    for number in (1, 2):
        reply = rqms.call("PUT", f"/{queue}/state%20changed/ignored", b"%d" % number)
        assert (reply.status, reply.body) == (201, b"Well spoken.")
    [old] = fetch(rqms, queue, 10)
    assert (old["value"], json.loads(old["ticket"])[0]) == (2, "state changed")
    assert rqms.call("PUT", f"/{queue}/state%20changed", b"3").status == 201
    assert finish(rqms, queue, old).status == 409
    [new] = fetch(rqms, queue, 10)
    assert new["value"] == 3
    assert finish(rqms, queue, new).status == 200
    assert fetch(rqms, queue, 10) == []


def test_order_within_an_answer(rqms: Facade, queue: str) -> None:
    """Items of one answer ascend by their ids, byte by byte, whatever the order of the posts."""
    names = ["b", "a10", "Z", "a9", "\u00e9", "item-000000001", "~"]
    for name in names:
        assert add(rqms, queue, name).status == 201
    fetched = [json.loads(item["ticket"])[0] for item in fetch(rqms, queue, 100)]
    assert fetched == sorted(names, key=str.encode)


def test_locks_end(rqms: Facade, queue: str) -> None:
    """An item whose lock has ended is fetched again; then the old ticket is spent, and before it is not."""
    add(rqms, queue, "x")
    [first] = fetch_some(rqms, queue, 0)
    [second] = fetch_some(rqms, queue, 0.5)
    assert second["ticket"] != first["ticket"]
    [third] = fetch_some(rqms, queue)
    assert [finish(rqms, queue, item).status for item in (first, second, third)] == [409, 409, 200]


def test_defaults_and_more_than_can_be_had(rqms: Facade, queue: str) -> None:
    """The default is one item, locked for some seconds; a request for more than available gets all available ones."""
    for name in "abc":
        add(rqms, queue, name)
    assert len(json.loads(rqms.call("GET", f"/{queue}").body)["items"]) == 1
    # If the machine pauses for ten seconds the first item is free again.
    assert len(fetch(rqms, queue, 10**9, 1e12)) in {2, 3}


def test_short_wait(rqms: Facade, queue: str) -> None:
    """A fetch that finds nothing waits a moment for an item; a queue that does not exist has none."""
    assert fetch(rqms, queue) == []
    assert rqms.call("GET", f"/{queue}/anything/below?x=1").body == b'{"items":[]}'
    adding = threading.Timer(0.1, add, (rqms, queue, "late"))
    adding.start()
    assert [json.loads(item["ticket"])[0] for item in fetch_some(rqms, queue)] == ["late"]
    adding.join(WAIT)


DEEPLY_NESTED_JSON = b"[" * 300 + b"]" * 300


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/{queue}", b"1"),
        ("POST", "/{queue}?id=", b"1"),
        ("POST", "/{queue}?id=x", b"{"),
        ("POST", "/{queue}?id=x", b"\xff"),
        ("POST", "/{queue}?id=x", DEEPLY_NESTED_JSON),
        ("POST", "/{queue}?id=%ff", b"1"),
        ("POST", "/{queue}?id=" + 256 * "x", b"1"),
        ("POST", "/{queue}?id=a%2Fb", b"1"),
        ("POST", "/{queue}?id=x", b'"' + b"x" * (4 * 1024 * 1024) + b'"'),
        ("PUT", "/{queue}", b"1"),
        ("PUT", "/{queue}/" + 256 * "x", b"1"),
        ("PUT", "/_private/x", b"1"),
        ("POST", "/%01?id=x", b"1"),
        ("POST", "/" + 51 * "q" + "?id=x", b"1"),
        ("GET", "/", None),
        ("GET", "/{queue}?count=x", None),
        ("GET", "/{queue}?time=-1", None),
        ("GET", "/_private", None),
        ("DELETE", "/{queue}", b""),
        ("DELETE", "/{queue}", b"{"),
        ("DELETE", "/{queue}", b'["x", 1]'),
        ("DELETE", "/{queue}", b'"x"'),
        ("PATCH", "/{queue}", b"1"),
    ],
)
def test_bad_input(rqms: Facade, native: Client, queue: str, method: str, path: str, body: bytes | None) -> None:
    """What is wrong is 400 in the original's form of errors, and stores nothing."""
    before = list(native.queue_names())
    reply = rqms.call(method, path.format(queue=queue), body)
    assert reply.status == 400
    answer = json.loads(reply.body)
    assert (answer.keys(), answer["error"]) == ({"error", "message"}, True)
    assert list(native.queue_names()) == before


@pytest.mark.parametrize("ticket", ['["x","y"]', '["x","1-' + "0" * 32 + '-1-000000"]', '["x",""]'])
def test_tickets_of_nothing(rqms: Facade, queue: str, ticket: str) -> None:
    """A ticket that is not of the queue is spent, as is every ticket of a missing queue."""
    for _ in range(2):
        assert rqms.call("DELETE", f"/{queue}", ticket.encode()).status == 409
        add(rqms, queue, "x")
    assert len(fetch(rqms, queue)) == 1


def test_tickets_of_another_queue(rqms: Facade, queue: str) -> None:
    """A ticket removes nothing from another queue."""
    add(rqms, queue, "x")
    add(rqms, f"{queue}b", "x")
    [item], [other] = fetch(rqms, queue), fetch(rqms, f"{queue}b")
    assert finish(rqms, queue, other).status == 409
    assert rqms.call("DELETE", f"/{queue}", json.dumps(item["ticket"]).encode()).status == 200
    assert finish(rqms, f"{queue}b", other).status == 200


def test_as_its_client_sends(served: Served, rqms: Facade, queue: str) -> None:
    """The original client sends absolute request targets, and tickets as the body of DELETE; others send chunks."""
    body = b'{"n": 1}'
    target = f"http://127.0.0.1:{served.port}/rqms/{queue}?id=item-000000000-abcdefghijklmnopqrstuv"
    assert Facade(served.port).send_raw(f"POST\n{target}\nContent-Length: {len(body)}", body) == 201
    [item] = fetch(rqms, queue)
    ticket = item["ticket"].encode()
    target = f"http://127.0.0.1:{served.port}/rqms/{queue}"
    assert Facade(served.port).send_raw(f"DELETE\n{target}\nContent-Length: {len(ticket)}", ticket) == 200
    add(rqms, queue, "y")
    [item] = fetch(rqms, queue)
    chunks = iter([item["ticket"].encode()])
    assert rqms.call("DELETE", f"/{queue}", chunks, Transfer_Encoding="chunked").status == 200


def test_ordinary_queues(rqms: Facade, native: Client, queue: str) -> None:
    """Items can be read by time, by name and claimed natively, and messages sent natively are fetched."""
    add(rqms, queue, "x", {"n": 1})
    native.send(queue, "text")
    native.send(queue, b"\xff")
    native.send(queue, json=[1])
    assert next(message.body for message in native.read_all(queue, since=0)) == {"n": 1}
    named = native.named(queue).get("x")
    assert named is not None
    [job] = native.job_queue(queue).receive(limit=1, ttl=600)
    assert job.message.id == named.id
    assert {json.dumps(item["value"]) for item in fetch(rqms, queue, 10)} == {'"text"', '"/w=="', "[1]"}
    assert native.job_queue(queue).counts().claimed == 4
