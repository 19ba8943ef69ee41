"""Partitions that come and go: what is handed out meanwhile, what may be committed, and which callbacks run."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from qdo.errors import NotOwner
from qdo.partitions import Partition, Queue
from tests.qdo.consumer.conftest import System, body_numbers, collect, flat, prefetched, session_of, until


def places(queue: Queue, *numbers: int) -> set[Partition]:
    return {Partition(queue, number) for number in numbers}


class RecordedCallbacks:
    """Keeps the calls of a consumer's callbacks, in order.

    Attributes:
        calls: Pairs of a callback's name and a partition's number.
    """

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []

    def callbacks(self) -> dict[str, Any]:
        return {name: self._callback(name) for name in ("on_assign", "on_revoke", "on_lost")}

    def of(self, number: int) -> list[str]:
        return [name for name, notified in self.calls if notified == number]

    def _callback(self, name: str) -> Any:  # noqa: ANN401 - a callback
        def tell(partitions: frozenset[Partition]) -> None:
            self.calls += sorted((name, partition.number) for partition in partitions)

        return tell


async def test_nothing_is_handed_out_once_a_revocation_has_begun(system: System) -> None:
    """Prefetched messages are dropped at a revocation; those handed out can be committed until on_revoke returns."""
    queue = await system.queue(partitions=2)
    for partition in (1, 2):
        await system.send(queue, 100, partition)
    revoking, proceed = asyncio.Event(), asyncio.Event()
    gone: set[Partition] = set()

    async def on_revoke(partitions: frozenset[Partition]) -> None:
        gone.update(partitions)
        revoking.set()
        await proceed.wait()
        await first.commit()

    first = await system.consumer(queue, owns=places(queue, 1, 2), callbacks={"on_revoke": on_revoke})
    before = await collect(first, 20, most=20)
    await until(lambda: prefetched(first) == 180)
    joining = asyncio.create_task(system.consumer(queue))
    await revoking.wait()
    (moved,) = gone
    (kept,) = places(queue, 1, 2) - gone
    assert first.assignment == {kept}
    assert prefetched(first) == 90
    assert first.position(moved) == [one.id for one in before if one.partition == moved.number][-1]
    with pytest.raises(NotOwner):
        await first.seek(moved, "earliest")
    rest = await collect(first, 90)
    assert body_numbers(rest, kept.number) == list(range(11, 101))
    assert await first.poll(timeout=0) == []
    proceed.set()
    second = await joining
    assert body_numbers(await collect(second, 90), moved.number) == list(range(11, 101))
    with pytest.raises(NotOwner):
        await first.commit({moved: before[0].id})


@pytest.mark.parametrize("error", [RuntimeError("on purpose"), asyncio.CancelledError("on purpose")], ids=repr)
async def test_callbacks_that_fail_change_nothing(
    system: System, caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    """Errors of callbacks are logged; partitions come and go all the same."""
    queue = await system.queue(partitions=2)
    for partition in (1, 2):
        await system.send(queue, 1, partition)

    async def fail(partitions: frozenset[Partition]) -> None:
        raise error

    names = ("on_assign", "on_revoke", "on_lost")
    first = await system.consumer(queue, owns=places(queue, 1, 2), callbacks=dict.fromkeys(names, fail))
    await collect(first, 2)
    second = await system.consumer(queue)
    assert len(second.assignment) == 1
    await until(lambda: len(first.assignment) == 1)
    assert "failed for 1 partitions" in caplog.text


async def test_a_loss_while_on_assign_runs(system: System) -> None:
    """A loss stops reading at once, while on_assign runs: on_lost follows it, and then the next assignment."""
    queue, notified, proceed = await system.queue(), RecordedCallbacks(), asyncio.Event()
    await system.send(queue, 3)
    tell = notified.callbacks()["on_assign"]

    async def on_assign(partitions: frozenset[Partition]) -> None:
        tell(partitions)
        await proceed.wait()
        notified.calls.append(("end", 1))

    consumer = await system.consumer(queue, callbacks=notified.callbacks() | {"on_assign": on_assign})
    await until(lambda: notified.of(1) == ["on_assign"])
    await system.service.expire(session_of(consumer))
    assert (consumer.assignment, system.transport.reads) == (frozenset(), [])
    proceed.set()
    assert body_numbers(await collect(consumer, 3)) == [1, 2, 3]
    assert notified.of(1) == ["on_assign", "end", "on_lost", "on_assign", "end"]


async def test_closing_gives_everything_up_in_order(system: System) -> None:
    """Closing ends a waiting poll, lets on_revoke commit, and then leaves the group."""
    queue = await system.queue(partitions=3)
    for partition in (1, 2, 3):
        await system.send(queue, 2, partition)
    notified = RecordedCallbacks()

    async def on_revoke(partitions: frozenset[Partition]) -> None:
        assert await consumer.poll(timeout=None) == []
        await consumer.commit()
        notified.calls += [("on_revoke", partition.number) for partition in partitions]

    callbacks = notified.callbacks() | {"on_revoke": on_revoke}
    consumer = await system.consumer(queue, owns=places(queue, 1, 2, 3), callbacks=callbacks)
    await collect(consumer, 6)
    waiting = asyncio.create_task(consumer.poll(timeout=None))
    await asyncio.sleep(0)
    await asyncio.gather(consumer.close(), consumer.close())
    assert await waiting == []
    assert consumer.closing
    assert all(notified.of(number) == ["on_assign", "on_revoke"] for number in (1, 2, 3))
    assert len(await system.offsets()) == 3
    coordinator = await system.coordinator()
    assert await coordinator.members() == {}
    assert await coordinator.owners() == {}
    assert await consumer.poll(timeout=None) == []


async def test_whoever_is_suspended_hands_nothing_out(system: System) -> None:
    """A suspended consumer hands nothing out; if its session survives it goes on where it was."""
    queue = await system.queue()
    await system.send(queue, 10)
    consumer = await system.consumer(queue)
    await collect(consumer, 2, most=2)
    await system.service.cut()
    await until(lambda: session_of(consumer).state == "suspended")
    assert await consumer.poll(timeout=0) == []
    waiting = asyncio.create_task(consumer.poll(3, timeout=None))
    await system.service.heal()
    assert body_numbers(flat(await waiting)) == [3, 4, 5]
    await consumer.commit()
