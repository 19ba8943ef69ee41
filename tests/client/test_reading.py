"""Paging, following live, and calls by id, on scripted answers."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import httpx2
import pytest

from queuey.client import InvalidArgument, Message, Query, QueueNotFound, Receipt, ServiceUnavailable
from queuey.model import ids
from tests.client.conftest import Connect
from tests.client.scripted import Script, claims, message_id, ok, page

HORIZON = message_id(99)


def list_params(script: Script) -> list[dict[str, str]]:
    return [dict(request.url.params) for request in script.requests]


def test_a_plain_read_asks_for_all_partitions(connect: Connect) -> None:
    """Without options everything is the server's default, but for all partitions."""
    script = Script(page(1, 2))
    read = connect(script).read("q")
    assert list_params(script) == [{"partitions": "*"}]
    assert [message.body for message in read.messages] == ["m1", "m2"]
    assert read.next == {1: message_id(3)}
    assert (read.cursor, read.horizon, read.more, read.cursor_safe) == (f"1:{message_id(3)}", HORIZON, False, True)


NOON = datetime(2026, 1, 2, 12, 0, 0, 123456, tzinfo=UTC)


def test_partitions_that_can_be_gone_through_once(connect: Connect) -> None:
    """Each page, and each claim, asks for all partitions that were given."""
    script = Script(page(1, more=True), page(2))
    messages = list(connect(script).read_all("q", partitions=iter([1, 2])))
    assert [message.body for message in messages] == ["m1", "m2"]
    assert [request.url.params["partitions"] for request in script.requests] == ["1,2", "1,2"]
    script = Script(claims(1), claims())
    list(connect(script).job_queue("q").claim(idle=0, partitions=iter([1, 2])))
    assert [request.url.params["partitions"] for request in script.requests] == ["1,2", "1,2"]


@pytest.mark.parametrize(
    ("point", "text"),
    [
        (message_id(5), message_id(5)),
        (1517363399, "1517363399"),
        (1517363399.65, "1517363399.6500001"),
        (0, "0"),
        (NOON, "1767355200.123456"),
        (NOON.astimezone(timezone(timedelta(hours=-5))), "1767355200.123456"),
        (Receipt(message_id(6), "6.0", 1), message_id(6)),
        (Message(message_id(6), "6.0", 1, "x"), message_id(6)),
        ({1: message_id(7), 2: None, 3: message_id(8)}, f"1:{message_id(7)},3:{message_id(8)}"),
    ],
)
def test_positions_may_be_given_in_many_forms(connect: Connect, point: Any, text: str) -> None:  # noqa: ANN401
    """Ids, instants, messages and cursors all become the API's form, exactly."""
    script = Script(page())
    connect(script).read("q", since=point, after=point, before=point, until=point)
    assert list_params(script) == [{"partitions": "*", "since": text, "after": text, "before": text, "until": text}]


def test_all_options_reach_the_server(connect: Connect) -> None:
    """Every option of a read has its parameter."""
    script = Script(page(cursor_safe=False))
    read = connect(script).read("q", partitions=[1, 3], limit=5, order="descending", delay=False, merge=True, wait=2.5)
    expected = {"partitions": "1,3", "limit": "5", "order": "descending", "delay": "0", "merge": "true", "wait": "2.5"}
    assert list_params(script) == [expected]
    assert not read.cursor_safe


def test_reading_all_follows_the_cursor(connect: Connect) -> None:
    """Pages are read until there are no more, each from the end of the last one, within the bounds."""
    script = Script(page(1, 2, more=True), page(3, more=True), page(4))
    bodies = [message.body for message in connect(script).read_all("q", limit=2, until=50)]
    assert bodies == ["m1", "m2", "m3", "m4"]
    since = [params.get("since") for params in list_params(script)]
    assert since == [None, f"1:{message_id(3)}", f"1:{message_id(4)}"]
    assert all(params["until"] == "50" for params in list_params(script))


def test_reading_all_ends_when_every_partition_is_through(connect: Connect) -> None:
    """An empty cursor ends a descending read; asking on would begin again at the newest."""
    script = Script(page(1, more=True, next={"1": None}, cursor=""))
    assert len(list(connect(script).read_all("q", order="descending"))) == 1
    assert len(script.requests) == 1


def test_a_deleted_queue_ends_a_tail(connect: Connect) -> None:
    """What will not pass is raised at once."""
    script = Script(page(1), httpx2.Response(404, json={"code": "InvalidQueueName"}))
    following = connect(script).tail("q", since=0)
    next(following)
    with pytest.raises(QueueNotFound):
        next(following)
    assert script.slept == []


def test_a_quiet_queue_shows_empty_pages_and_never_spins(connect: Connect) -> None:
    """Every page is handed on, so that a follower sees time pass; early empty answers are paced."""
    script = Script(page())
    pages = connect(script).tail_pages("q", since=0)
    for _ in range(3):
        assert next(pages).messages == ()
    assert script.slept == [0.5, 0.5]
    pages.close()


@pytest.mark.parametrize(
    "options", [{"wait": 0}, {"wait": 21}, {"order": "descending"}, {"until": 5}, {"before": message_id(1)}]
)
def test_a_tail_that_cannot_be_is_refused(connect: Connect, options: dict[str, Any]) -> None:
    """A live read goes forwards, has no end, and holds its requests open."""
    script = Script(page())
    with pytest.raises(InvalidArgument):
        next(connect(script).tail("q", **options))
    assert script.requests == []


def test_following_early(connect: Connect) -> None:
    """Each message is returned once; polls name early messages that were returned, so these do not answer again."""

    def marked(number: int) -> dict[str, Any]:
        message: dict[str, Any] = page(number).json()["messages"][0]
        return message | {"early": True}

    placed: dict[str, Any] = {"cursor": f"1:{message_id(2)}", "horizon": message_id(2), "next": {"1": message_id(2)}}
    script = Script(
        page(messages=[marked(4), marked(6)], **placed),
        page(messages=[*page(3, 4).json()["messages"], marked(7)], horizon=message_id(5), cursor=f"1:{message_id(5)}"),
        page(),
    )
    pages = connect(script).tail_pages("q", since=message_id(1), early=True)
    polled = [[(each.body, each.early) for each in found.messages] for found in itertools.islice(pages, 3)]
    assert polled == [[("m4", True), ("m6", True)], [("m3", False), ("m7", True)], []]
    assert [one["early"] for one in list_params(script)] == ["true", f"1:{message_id(6)}", f"1:{message_id(7)}"]
    pages.close()


def test_following_early_from_now_on(connect: Connect) -> None:
    """The read that finds the horizon is an ordinary one, newest first."""
    script = Script(page(1), page(2))
    next(connect(script).tail("q", early=True))
    assert [one.get("early") for one in list_params(script)] == [None, "true"]


def test_several_queues_are_read_in_one_call(connect: Connect) -> None:
    """Each part of the answer is a page, or the error in its place."""
    entry = page(1).json() | {"queue_name": "a"}
    failed = {"queue_name": "b", "status": "error", "error_msg": {"InvalidQueueName": "gone"}}
    broke = {"queue_name": "c", "status": "error", "error_msg": {"StoreBusy": "locked"}}
    wrong = {"queue_name": "d", "status": "error", "error_msg": {"limit": "too high"}}
    script = Script(ok(queues=[entry, failed, broke, wrong]))
    queries = ["a", Query(queue="b", partitions=[1, 2], since=5, delay=False, merge=True), "c", "d"]
    a, b, c, d = connect(script).read_queues(queries, wait=3)
    assert script.sent() == {
        "queues": [
            {"queue_name": "a", "partitions": "*"},
            {"queue_name": "b", "partitions": "1,2", "since": "5", "delay": 0, "merge": True},
            {"queue_name": "c", "partitions": "*"},
            {"queue_name": "d", "partitions": "*"},
        ],
        "wait": 3,
    }
    assert script.requests[0].url.path == "/v1/acme/_read"
    assert [message.body for message in a.page.messages] == ["m1"]
    assert isinstance(b.error, QueueNotFound)
    assert isinstance(c.error, ServiceUnavailable)
    assert d.error.fields == {"limit": "too high"}
    assert b.page is None


def test_a_message_knows_its_time_exactly() -> None:
    """The text of the timestamp is kept, ticks are exact, and the datetime is cut to microseconds."""
    ticks = ids.parse_instant("1795145194.2357461")
    assert ticks is not None
    message = Message(ids.to_hex((ticks, 0)), "1795145194.2357461", 1, "x")
    assert message.ticks == ticks
    assert message.time == datetime(2026, 11, 20, 3, 26, 34, 235746, tzinfo=UTC)
    assert Receipt(message.id, message.timestamp, 1).time == message.time


def test_many_ids_are_asked_for_in_short_requests(connect: Connect) -> None:
    """Ids beyond what a request line holds go out in several requests, in order."""
    script = Script(lambda request: ok(messages=page(*[1] * (request.url.path.count(",") + 1)).json()["messages"]))
    client = connect(script)
    assert len(client.get("q", [(2, message_id(n)) for n in range(450)])) == 450
    client.delete("q", [message_id(n) for n in range(201)])
    assert [request.method for request in script.requests] == ["GET"] * 3 + ["DELETE"] * 2
    assert all(len(request.url.raw_path) < 8000 for request in script.requests)


def test_no_ids_mean_no_request(connect: Connect) -> None:
    """Deleting no message must not delete the queue, which is what the bare path would mean."""
    script = Script(ok())
    client = connect(script)
    client.delete("q", [])
    assert client.get("q", []) == []
    assert script.requests == []


def test_expected_offsets_are_told_from_none(connect: Connect) -> None:
    """An offset without expectation, one that must not exist yet, and one that must have a certain id differ."""
    script = Script(ok(group="g", partitions={"1": {"offset": message_id(1)}}))
    offsets = {1: message_id(1), 2: Receipt(message_id(2), "2.0", 2), 3: message_id(3)}
    assert connect(script).commit("q", "g", offsets, expected={2: None, 3: message_id(1)}) == {1: message_id(1)}
    assert script.sent() == {
        "partitions": {
            "1": {"offset": message_id(1)},
            "2": {"offset": message_id(2), "expected": None},
            "3": {"offset": message_id(3), "expected": message_id(1)},
        }
    }
    for arguments in ({}, {1: message_id(1)}):
        with pytest.raises(InvalidArgument):
            connect(script).commit("q", "g", arguments, expected={2: None})
