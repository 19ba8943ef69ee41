"""The callbacks of a member, whatever they do with their time."""

from __future__ import annotations

import asyncio

from qdo.group.callbacks import CallbackListener
from qdo.group.offsets import PartitionOwnership
from qdo.partitions import Partition
from tests.qdo.unit.samples import QUEUE


async def test_callbacks_come_one_at_a_time() -> None:
    """All wait for a callback that ignores its cancellation; those who wait to be revoked share a call that is left."""
    calls: list[tuple[str, list[int]]] = []
    go_on = asyncio.Event()

    def on_assign(partitions: frozenset[Partition]) -> None:
        calls.append(("assign", sorted(each.number for each in partitions)))

    async def on_revoke(partitions: frozenset[Partition]) -> None:
        calls.append(("revoke", sorted(each.number for each in partitions)))
        try:
            await go_on.wait()
        except asyncio.CancelledError:
            calls.append(("cancelled", sorted(each.number for each in partitions)))
            await go_on.wait()
        calls.append(("revoked", sorted(each.number for each in partitions)))

    def on_lost(partitions: frozenset[Partition]) -> None:
        calls.append(("lost", sorted(each.number for each in partitions)))

    listener = CallbackListener(on_assign, on_revoke, on_lost)
    rows = [PartitionOwnership(Partition(QUEUE, number), None) for number in range(6)]
    await listener.assigned(rows[:5])
    slow = [asyncio.create_task(listener.revoke(row)) for row in rows[:2]]
    await asyncio.sleep(0.01)
    later = [asyncio.create_task(listener.revoke(row)) for row in rows[2:5]]
    unheard = asyncio.create_task(listener.assigned(rows[5:]))
    await asyncio.sleep(0.01)
    for over in (*slow, later.pop(), unheard):
        over.cancel()
    ends = [asyncio.create_task(listener.lost([rows[0], rows[1], rows[4], rows[5]]))]
    ends.append(asyncio.create_task(listener.assigned(rows[:1])))
    await asyncio.sleep(0.01)
    before = [*calls]
    go_on.set()
    await asyncio.gather(*later, *ends)
    assert before == [("assign", [0, 1, 2, 3, 4]), ("revoke", [0, 1]), ("cancelled", [0, 1])]
    assert calls[3:] == [
        *(("revoked", [0, 1]), ("revoke", [2, 3]), ("revoked", [2, 3])),
        *(("lost", [0, 1, 4]), ("assign", [0])),
    ]
