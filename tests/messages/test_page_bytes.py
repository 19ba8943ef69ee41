"""``page_bytes`` limits partitions, and queues and ids that are named twice, together; so does a batch's for copies."""

from __future__ import annotations

import json
from typing import Any

import pytest

from queuey.runtime.limits import Limits
from tests.web.caller import Caller

BODY = 10_000
PAGE = 52_000


@pytest.fixture
def limits() -> Limits:
    """Small pages, and bodies of which five fill one."""
    return Limits(page_bytes=PAGE, max_body=BODY, max_batch_bytes=1 << 22)


def fill(owner: Caller, name: str, partitions: int, each: int, **fields: Any) -> list[tuple[int, str]]:  # noqa: ANN401
    owner.create(name, partitions=partitions, **fields)
    items = [{"body": "x" * BODY, "partition": n} for n in range(1, partitions + 1) for _ in range(each)]
    reply = owner.batch(name, *items)
    return [(message["partition"], message["key"]) for message in reply.messages]


@pytest.mark.parametrize("order", ["ascending", "descending"])
@pytest.mark.parametrize("merge", ["false", "true"])
def test_over_partitions(owner: Caller, order: str, merge: str) -> None:
    """However many partitions are read, a page is a page, up to one message; and going on gives every message once."""
    stored = fill(owner, "q", 40, 2)
    places: list[tuple[int, str]] = []
    cursor = ""
    for _ in range(60):
        reply = owner.get("q", partitions="*", order=order, merge=merge, since=cursor, delay=0)
        bodies = sum(map(len, reply.bodies))
        assert bodies <= PAGE + BODY
        places += [(message["partition"], message["message_id"]) for message in reply.messages]
        cursor = reply.json["cursor"]
        if not reply.json["more"]:
            break
    assert not reply.json["more"]
    assert sorted(places) == sorted(stored)


def test_over_queues_named_again(owner: Caller, anonymous: Caller) -> None:
    """A queue named a hundred times by an anonymous caller returns one page; the rest can be read later."""
    fill(owner, "q", 1, 5, type="public")
    content = {"queues": [{"queue_name": "q", "partitions": "*"}] * 100}
    reply = anonymous.send_json("POST", "_read", content)
    assert len(reply.body) < PAGE + BODY + 100 * 300
    responses = reply.json["queues"]
    assert sum(len(response["messages"]) for response in responses) <= (PAGE + BODY) // BODY
    assert all(response["more"] for response in responses if not response["messages"])
    last = responses[-1]
    again = {"queues": [{"queue_name": "q", "partitions": "*", "since": last["cursor"]}]}
    assert len(owner.send_json("POST", "_read", again).json["queues"][0]["messages"]) == 5


def test_over_ids(owner: Caller) -> None:
    """An id named twice returns its message once; more than a page together is refused, so nothing seems missing."""
    stored = [f"{partition}:{name}" for partition, name in fill(owner, "q", 1, 8)]
    reply = owner.get("q/" + ",".join([stored[0]] * 1000))
    assert reply.bodies == ["x" * BODY]
    assert len(owner.get("q/" + ",".join(stored[:5])).messages) == 5
    reply = owner.get("q/" + ",".join(stored * 2))
    assert (reply.status, list(reply.errors)) == (413, ["InvalidMessageID"])
    assert json.dumps(PAGE) in reply.text


def test_over_copies(owner: Caller) -> None:
    """One body at many ids is refused as soon as its copies are longer than a batch may be; nothing is stored."""
    [(_, first), *_] = fill(owner, "q", 1, 1)
    ids = [f"{number:08x}{first[8:]}" for number in range(500)]
    reply = owner("PUT", "q/" + ",".join(ids), b"y" * BODY)
    assert (reply.status, list(reply.errors)) == (413, ["body"])
    assert "500 copies of 10000 bytes" in reply.errors["body"]
    assert owner.get("q/" + ",".join(ids[1:])).bodies == []
    assert owner("PUT", "q/" + ",".join(ids[:400]), b"y" * BODY).status == 200
    assert owner("PUT", "q/" + ",".join([ids[0]] * 1000), b"y" * BODY).status == 200
