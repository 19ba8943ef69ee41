"""Every call of the client against the real service, sync and async, in process and over a socket."""

from __future__ import annotations

from typing import Any

import pytest

from queuey.app.service import App
from queuey.client import AsyncClient, Conflict, GroupNotFound, InvalidArgument, OffsetConflict, Outgoing, QueueNotFound
from tests.client.live import LOCAL, LOCAL_KEY, Bridge

Queuey = Any
"""Either client; the async one is called like the sync one."""


def bodies(messages: Any) -> list[Any]:  # noqa: ANN401 - anything with messages
    return [message.body for message in messages]


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
