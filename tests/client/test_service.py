"""Every call of the client against the real service, sync and async, in process and over a socket."""

from __future__ import annotations

import itertools
import uuid
from typing import Any

import pytest

from queuey.client import (
    AsyncClient,
    Conflict,
    GroupNotFound,
    InvalidArgument,
    OffsetConflict,
    Outgoing,
    QueueNotFound,
)
from queuey.web.parts import App
from tests.client.live import LOCAL, LOCAL_KEY, Bridge

Queuey = Any
"""Either client; the async one is called like the sync one."""


def bodies(messages: Any) -> list[Any]:  # noqa: ANN401 - anything with messages
    return [message.body for message in messages]


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
    with pytest.raises(InvalidArgument):
        queuey.mark_read(queue, stored[0], cursor=page.cursor)


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
