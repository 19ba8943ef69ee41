"""Every call of the client against the real service, sync and async, in process and over a socket."""

from __future__ import annotations

import itertools
import uuid
from typing import Any

import pytest
from msgspec import Raw

from queuey.client import (
    AsyncClient,
    Backoff,
    Conflict,
    GroupNotFound,
    InvalidArgument,
    InvalidRequest,
    OffsetConflict,
    Outgoing,
    QueueExists,
    QueueNotFound,
)
from queuey.web.parts import App
from tests.client.live import LOCAL, LOCAL_KEY, Bridge

Queuey = Any
"""Either client; the async one is called like the sync one."""


def bodies(messages: Any) -> list[Any]:  # noqa: ANN401 - anything with messages
    return [message.body for message in messages]


def test_a_queue_lives_from_create_to_delete(queuey: Queuey) -> None:
    """Create, find again, conflict, update, reset, describe, purge and delete."""
    name = uuid.uuid4().hex
    readers = ("app:reports", f"app:{queuey.application}")
    created = queuey.create_queue(name, partitions=2, ttl=600, principals=readers)
    assert (created.name, created.partitions, created.ttl, created.new) == (name, 2, 600, True)
    assert created.principals == queuey.info(name).principals == readers
    (listed,) = itertools.islice(queuey.queues(start=name), 1)
    assert (listed.principals, listed.ttl) == (readers, 600)
    assert not queuey.create_queue(name, partitions=2).new
    with pytest.raises(QueueExists) as caught:
        queuey.create_queue(name, partitions=5)
    assert (caught.value.status, caught.value.code) == (409, "QueueExists")
    updated = queuey.update_queue(name, partitions=3, ttl=None, principals=None)
    assert (updated.partitions, updated.ttl, updated.principals) == (3, None, ())
    assert queuey.update_queue(name, backoff=Backoff(first=5.0, most=600.0)).backoff == Backoff(first=5.0, most=600.0)
    with pytest.raises(InvalidRequest) as refused:
        queuey.update_queue(name, partitions=1)
    assert refused.value.code == "InvalidUpdate"
    info = queuey.info(name)
    assert (info.name, info.partitions, info.count, info.exact) == (name, 3, 0, True)
    assert info.created == updated.created
    assert set(info.partition_info) == {1, 2, 3}
    assert info.acknowledgement.text
    queuey.delete_queue(name)
    with pytest.raises(QueueNotFound):
        queuey.info(name)


def test_queues_are_listed(queuey: Queuey) -> None:
    """All pages of the list, with names alone, with fields and with counts."""
    prefix = uuid.uuid4().hex[:8]
    names = [f"{prefix}-{n}" for n in range(5)]
    for name in names:
        queuey.create_queue(name)
    queuey.send(names[2], "x")

    def ours(found: Any) -> list[Any]:  # noqa: ANN401 - names or queues
        return list(itertools.takewhile(lambda queue: getattr(queue, "name", queue).startswith(prefix), found))

    assert ours(queuey.queue_names(start=prefix, page_size=2)) == names
    listed = ours(queuey.queues(start=prefix, count=True, page_size=2))
    assert [queue.name for queue in listed] == names
    assert [queue.count for queue in listed] == [0, 0, 1, 0, 0]
    assert all(queue.type == "user" and queue.created and queue.application for queue in listed)
    page = queuey.queue_page(start=names[0], limit=2)
    assert page.next == names[2]
    assert page.queues[0].count is None
    for name in names:
        queuey.delete_queue(name)


@pytest.mark.parametrize(
    ("sent", "body", "kind"),
    [
        ({"body": "Grüße\r\n \x00"}, "Grüße\r\n \x00", None),
        ({"body": b"\x00\xff\xfe"}, b"\x00\xff\xfe", None),
        ({"body": b"\xff", "key": "é"}, b"\xff", None),
        ({"body": "<p>", "content_type": "text/html; charset=utf-8"}, "<p>", "text/html; charset=utf-8"),
        ({"body": '{"a": 1}', "content_type": "application/json"}, '{"a": 1}', "application/json"),
        ({"json": {"a": [1, 2.5, None, "ü"]}}, {"a": [1, 2.5, None, "ü"]}, "application/json"),
        ({"json": Raw(b'{"z": 1, "a": 1.0}')}, {"z": 1, "a": 1.0}, "application/json"),
        ({"json": 0, "content_type": "application/geo+json"}, 0, "application/geo+json"),
        ({"json": "text"}, "text", None),
    ],
)
def test_what_is_sent_is_read(queuey: Queuey, queue: str, sent: dict[str, Any], body: object, kind: str | None) -> None:
    """Bodies of every kind come back unchanged, with their content type, in every way of reading."""
    receipt = queuey.send(queue, **sent)
    (read,) = queuey.read(queue).messages
    (got,) = queuey.get(queue, receipt)
    assert read == got
    assert (read.body, type(read.body), read.content_type) == (body, type(body), kind)
    assert (read.id, read.timestamp, read.partition) == (receipt.id, receipt.timestamp, receipt.partition)


@pytest.mark.parametrize("value", ["plain value", "é", "a: b, c; d"])
def test_headers_survive(queuey: Queuey, queue: str, value: str) -> None:
    """Headers come back with their values, names in lower case; raw reads have those that HTTP can carry."""
    receipt = queuey.send(queue, "x", headers={"Trace-Id": value, "b": "2"})
    (message,) = queuey.get(queue, receipt)
    assert message.headers == {"trace-id": value, "b": "2"}
    if value.isascii():
        raw = queuey.get_raw(queue, receipt)
        assert (raw.body, raw.partition, raw.headers) == (b"x", receipt.partition, {"trace-id": value, "b": "2"})


def test_marking_what_was_read(queuey: Queuey, queue: str) -> None:
    """Marks are set by messages, an id or a cursor; later messages are unread; a missing queue is an error."""
    stored = queuey.send_many(queue, [Outgoing(str(n), partition=n % 2 + 1) for n in range(6)])
    unread, missing = queuey.unread([queue, "nosuchqueue"], limit=5)
    assert (unread.unread, unread.more, unread.read, unread.error) == (5, True, {}, None)
    assert isinstance(missing.error, QueueNotFound)
    mark = queuey.mark_read(queue, stored[2], stored[0])
    assert (mark.read, mark.pending) == ({1: stored[2].id}, 0.0)
    assert queuey.mark_read(queue, f"1:{stored[0].id}").read == {1: stored[2].id}
    page = queuey.read(queue, partitions=2, limit=1)
    assert queuey.mark_read(queue, cursor=page.cursor).read == {2: stored[1].id}
    assert queuey.unread(queue)[0].unread == 3
    assert set(queuey.mark_read(queue, stored[-1].id).read) == {1, 2, 3}
    [remaining] = [each for each in queuey.unread() if each.queue == queue]
    assert remaining.unread == 0
    assert queuey.mark_read(queue, stored[0], back=True).read == {1: stored[0].id}
    assert queuey.unread([queue])[0].unread == 2


@pytest.mark.parametrize("seen", [[], ["x"], ["1:"], ["g" * 32]])
def test_marks_of_nothing(queuey: Queuey, queue: str, seen: list[str]) -> None:
    """What names no message is refused before it is sent, and so are messages beside a cursor."""
    with pytest.raises(InvalidArgument):
        queuey.mark_read(queue, *seen)
    stored = queuey.send(queue, "x")
    with pytest.raises(InvalidArgument):
        queuey.mark_read(queue, stored, cursor=f"1:{stored.id}")


def test_messages_by_id(queuey: Queuey, queue: str) -> None:
    """Get, put and delete by id, in one partition or several."""
    stored = queuey.send_many(queue, [Outgoing(str(n), partition=n + 1) for n in range(3)])
    assert sorted(bodies(queuey.get(queue, stored))) == ["0", "1", "2"]
    assert queuey.get(queue, f"{2}:{stored[0].id}") == []
    queuey.put(queue, stored[:2], "new", headers={"a": "b"}, content_type="text/plain")
    assert sorted(bodies(queuey.get(queue, stored))) == ["2", "new", "new"]
    assert queuey.get(queue, stored[0])[0].headers == {"a": "b"}
    queuey.put(queue, stored[2], json={"n": 1})
    assert queuey.get(queue, [(3, stored[2].id)])[0].body == {"n": 1}
    queuey.delete(queue, stored[1:])
    queuey.delete(queue, stored[1:])
    assert bodies(queuey.read_all(queue)) == ["new"]
    assert queuey.info(queue).partitions == 3


def test_offsets_are_compared_and_set(queuey: Queuey, queue: str) -> None:
    """Offsets are recorded per partition, a wrong expectation is reported, groups are listed and deleted."""
    stored = queuey.send_many(queue, [Outgoing(str(n), partition=1) for n in range(4)])
    with pytest.raises(GroupNotFound):
        queuey.offsets(queue, "g")
    assert queuey.commit(queue, "g", {1: stored[0]}, expected={1: None}) == {1: stored[0].id}
    with pytest.raises(OffsetConflict) as caught:
        queuey.commit(queue, "g", {1: stored[2], 2: stored[2]}, expected={1: stored[1]})
    assert isinstance(caught.value, Conflict)
    assert caught.value.current == {1: stored[0].id, 2: stored[2].id}
    assert caught.value.applied == (2,)
    queuey.commit(queue, "g", {1: stored[1]}, expected={1: stored[0]})
    offsets = queuey.offsets(queue, "g")
    assert offsets.partitions[1].offset == stored[1].id
    assert offsets.partitions[3].offset is None
    assert (offsets.partitions[1].lag, offsets.lag) == (2, 2)
    assert offsets.partitions[1].updated
    behind = queuey.lag(queue, {1: stored[0], 3: None})
    assert {number: (each.offset, each.lag) for number, each in behind.items()} == {1: (stored[0].id, 3), 3: (None, 0)}
    assert queuey.groups(queue) == ("g",)
    queuey.delete_group(queue, "g")
    assert queuey.groups(queue) == ()
    with pytest.raises(GroupNotFound):
        queuey.delete_group(queue, "g")


def test_tail_shows_what_comes_after_it_began(queuey: Queuey, queue: str) -> None:
    """A live read begins now, or at a given position, and sees new messages of all partitions in time order."""
    queuey.send(queue, "old")
    pages = queuey.tail_pages(queue, wait=0.001)
    assert next(pages).messages == ()
    queuey.send_many(queue, [Outgoing(str(n), partition=n % 3 + 1) for n in range(10)])
    assert bodies(next(pages).messages) == [str(n) for n in range(10)]
    pages.close()
    messages = queuey.tail(queue, since=0, limit=2)
    assert bodies(itertools.islice(messages, 11)) == ["old", *(str(n) for n in range(10))]
    messages.close()


def test_the_service_answers_about_itself(queuey: Queuey) -> None:
    """Heartbeat, version and the store's id need no queue."""
    queuey.heartbeat()
    assert queuey.version()
    hello = queuey.hello()
    assert (hello.store, len(hello.id)) == ("sqlite", 32)
    assert queuey.hello() == hello


async def read_async(app: App) -> list[Any]:
    async with AsyncClient(LOCAL, key=LOCAL_KEY, transport=Bridge(app)) as client:
        queue = (await client.create_queue()).name

        async def feed() -> Any:  # noqa: ANN401 - an async generator
            for number in range(3):
                yield f"m{number}"

        assert len(await client.send_many(queue, feed())) == 3
        return [message.body async for message in client.read_all(queue)]


def test_async_code_may_send_an_async_feed(app: App) -> None:
    """The async client takes async iterables and is iterated over asynchronously."""
    import asyncio  # noqa: PLC0415 - the event loop of this test alone

    assert asyncio.run(read_async(app)) == ["m0", "m1", "m2"]


def test_what_is_no_move(queuey: Any, queue: str) -> None:  # noqa: ANN401 - either client
    """Names and ids that cannot be are refused before anything is sent."""
    with pytest.raises(InvalidArgument):
        queuey.move(queue, "a/b")
    with pytest.raises(InvalidArgument):
        queuey.moving("x").show()


def test_what_is_no_schedule(queuey: Queuey, queue: str) -> None:
    """Names that cannot be are refused before anything is sent."""
    for name in ("", "a/b", "a b", "x" * 101, ".", ".."):
        with pytest.raises(InvalidArgument):
            queuey.schedules.put(name, queue=queue, message="x", every=60)
    with pytest.raises(InvalidArgument):
        queuey.schedules.put("s", queue="a/b", message="x", every=60)
