"""Following queues by a stream: where it begins, what it returns, and how it resumes."""

from __future__ import annotations

import itertools
import json
from typing import Any

import httpx2
import pytest

from queuey.client import InvalidAnswer, Message, NotAllowed, QueueNotFound, RetryPolicy
from queuey.client.calls import live_reads
from queuey.client.calls.live_reads import EarlyMessages
from tests.client.conftest import Connect
from tests.client.scripted import Script, busy, message_id, refuse_connection
from tests.replacing import replace_in


def event(number: int, queue: str = "q", *, place: str | None = None, **more: object) -> bytes:
    fields = {"message_id": message_id(number), "timestamp": f"{number}.0000000", "partition": 1, "body": f"m{number}"}
    data = json.dumps({**fields, "queue_name": queue, **more})
    return f"id: {place or f'c{number}'}\ndata: {data}\n\n".encode()


def control_event(kind: str, **fields: object) -> bytes:
    return f"event: {kind}\ndata: {json.dumps(fields)}\n\n".encode()


def stream(*events: bytes) -> httpx2.Response:
    return httpx2.Response(200, content=b"retry: 1000\nid: c0\n\n" + b"".join(events))


def first_bodies(found: Any, count: int) -> list[Any]:  # noqa: ANN401 - an iterator of either client
    return [each.message.body for each in itertools.islice(found, count)]


def test_a_stream_goes_on_from_what_was_taken(connect: Connect) -> None:
    """After an end, an outage, a piece of an event: each request names the last event that was taken."""
    half = event(3)[:20]
    script = Script(
        stream(event(1), b":\n\n", event(2), half), refuse_connection, busy(), stream(event(3)), stream(event(4))
    )
    following = connect(script, retry=RetryPolicy(deadline=0)).stream(["q", "r"], since=7, limit=5, partitions=1)
    assert first_bodies(following, 4) == ["m1", "m2", "m3", "m4"]
    assert [request.headers.get("last-event-id") for request in script.requests] == [None, "c2", "c2", "c2", "c3"]
    body = {"queues": ["q", "r"], "since": "7", "limit": 5, "partitions": "1"}
    assert all(json.loads(request.content) == body for request in script.requests)
    assert all(request.headers["accept"] == "text/event-stream" for request in script.requests)


def test_what_a_message_comes_with(connect: Connect) -> None:
    """A message has its queue and the cursor after it; a given cursor is where a stream begins."""
    script = Script(stream(event(1, "ü")))
    [streamed] = itertools.islice(connect(script).stream(cursor="before"), 1)
    assert (streamed.queue, streamed.message.id, streamed.cursor) == ("ü", message_id(1), "c1")
    assert script.requests[0].headers["last-event-id"] == "before"
    assert json.loads(script.requests[0].content) == {"partitions": "*"}


@pytest.mark.parametrize(
    ("told_last", "error"),
    [
        (control_event("bye", status=403, code="Forbidden", detail="no"), NotAllowed),
        (control_event("gone", queue_name="q", error_msg={"Forbidden": "no"}), NotAllowed),
        (control_event("gone", queue_name="q", error_msg={"InvalidQueueName": "gone"}), QueueNotFound),
        (b"data: {\n\n", InvalidAnswer),
    ],
)
def test_permanent_errors_end_a_stream(connect: Connect, told_last: bytes, error: type[Exception]) -> None:
    """A revoked right, a deleted queue and an invalid answer end the stream."""
    following = connect(Script(stream(event(1), told_last))).stream("q")
    assert first_bodies(following, 1) == ["m1"]
    with pytest.raises(error):
        next(following)


def test_passing_errors_do_not_end_a_stream(connect: Connect) -> None:
    """A service that stops, and one deleted queue among all, do not end it."""
    bye, deleted = (
        control_event("bye", detail="The service ends."),
        control_event("gone", queue_name="q", error_msg={"X": "y"}),
    )
    script = Script(stream(event(1), deleted, bye), stream(event(2)))
    assert first_bodies(connect(script).stream(), 2) == ["m1", "m2"]


def test_on_the_real_service(queuey: Any, queue: str) -> None:  # noqa: ANN401 - either client
    """A stream returns stored messages, new ones, and those after a cursor."""
    queuey.send_many(queue, ["a", b"\xff", "c"])
    messages = [next(following) for following in [queuey.stream(queue)] for _ in range(3)]
    assert sorted(str(each.message.body) for each in messages) == ["a", "b'\\xff'", "c"]
    assert {each.queue for each in messages} == {queue}
    [last] = itertools.islice(queuey.stream([queue], cursor=messages[1].cursor), 1)
    assert last.message.id == messages[2].message.id
    with pytest.raises(QueueNotFound):
        next(queuey.stream([queue, "none"]))


def test_early_messages_come_once(connect: Connect) -> None:
    """Early messages do not come twice, neither in order nor when a stream begins again; each is marked as it came."""
    before = message_id(1)
    script = Script(
        stream(event(5, place=before, early=True), event(7, place=before, early=True)),
        stream(event(5, place=before, early=True), event(4, place=message_id(5)), event(5, place=message_id(6))),
        stream(event(5, "r", place=message_id(6)), event(9, place=message_id(8), early=True)),
    )
    messages = list(itertools.islice(connect(script).stream("q", early=True), 5))
    assert [(each.queue, each.message.body, each.message.early) for each in messages] == [
        ("q", "m5", True),
        ("q", "m7", True),
        ("q", "m4", False),
        ("r", "m5", False),
        ("q", "m9", True),
    ]
    assert [request.headers.get("last-event-id") for request in script.requests] == [None, before, message_id(6)]
    assert json.loads(script.requests[0].content)["early"] is True


def test_what_is_remembered_of_early_messages_is_bounded() -> None:
    """What has come in its place, what the cursor has passed, and the oldest of very many are forgotten."""
    remembered = EarlyMessages()

    def is_new(number: int, *, early: bool = True) -> bool:
        return remembered.is_new("q", Message(message_id(number), "1.0", 1, "x", early=early))

    with replace_in(live_reads, live_reads.MAX_EARLY, 3):
        assert all(is_new(number) for number in (1, 2, 3, 4))
        assert (is_new(1), is_new(4)) == (True, False)
    assert not is_new(3, early=False)
    assert is_new(3, early=False)
    assert remembered.make_cursor() == f"1:{message_id(4)}"
    remembered.forget_below(message_id(5))
    assert remembered.make_cursor() is True
