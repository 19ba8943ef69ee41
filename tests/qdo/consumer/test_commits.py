"""Which offsets may be committed, and what a commit guarantees."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from qdo.errors import CoordinationLost, InvalidArgument, NotOwner
from qdo.group.offsets import PartitionOwnership
from qdo.group.partition_table import Ownership
from qdo.partitions import Partition
from tests.qdo.consumer.conftest import System, body_numbers, collect, prefetched, until
from tests.qdo.unit.samples import message_id
from tests.replacing import replace


async def test_without_ids_everything_handed_out_is_committed(system: System) -> None:
    """A commit without ids records all messages handed out, and no prefetched ones."""
    queue = await system.queue(partitions=3)
    sent = await system.send(queue, 10)
    consumer = await system.consumer(queue)
    await collect(consumer, 4, most=4)
    await consumer.commit()
    assert await system.offsets() == {Partition(queue, 1): sent[3]}
    assert consumer.committed(Partition(queue, 1)) == consumer.position(Partition(queue, 1)) == sent[3]
    assert consumer.committed(Partition(queue, 2)) is None


async def test_what_was_not_handed_out_cannot_be_committed(system: System) -> None:
    """A commit of a message that was not handed out records nothing, for the other partitions either."""
    queue = await system.queue(partitions=2)
    sent = await system.send(queue, 10)
    others = await system.send(queue, 1, 2)
    consumer = await system.consumer(queue)
    await until(lambda: prefetched(consumer) == 11)
    await consumer.poll(2)
    with pytest.raises(InvalidArgument, match="not returned"):
        await consumer.commit({Partition(queue, 2): others[0], Partition(queue, 1): sent[1]})
    assert await system.offsets() == {}


async def test_a_commit_of_what_is_somebody_elses_records_the_rest(system: System) -> None:
    """A commit that includes another member's partitions records the rest; the error names the lost partitions."""
    queue, foreign = await system.queue(), await system.queue()
    sent = await system.send(queue, 1)
    consumer = await system.consumer(queue)
    await collect(consumer, 1)
    lost = Partition(foreign, 1)
    with pytest.raises(NotOwner, match=foreign.name) as caught:
        await consumer.commit({Partition(queue, 1): sent[0], lost: message_id(1)})
    assert caught.value.partitions == {lost}
    assert await system.offsets() == {Partition(queue, 1): sent[0]}


async def test_a_commit_in_doubt_can_be_made_again(system: System) -> None:
    """If the outcome of a commit is unknown, the next one is not taken for a step back."""
    queue = await system.queue()
    place = Partition(queue, 1)
    sent = await system.send(queue, 3)
    flush, broken = Ownership.flush, ["the connection broke"]

    async def doubtful(self: Ownership, rows: Collection[PartitionOwnership]) -> frozenset[Partition]:
        recorded = await flush(self, rows)
        if broken:
            raise CoordinationLost(broken.pop())
        return recorded

    with replace(flush, doubtful):
        consumer = await system.consumer(queue)
        await collect(consumer, 3)
        with pytest.raises(CoordinationLost):
            await consumer.commit({place: sent[1]})
    await consumer.commit({place: sent[1]})
    await consumer.commit()
    assert await system.offsets() == {place: sent[2]}


async def test_by_itself_only_what_was_polled_past_is_committed(system: System) -> None:
    """With commit_every the last messages handed out count as processed only after the next poll."""
    queue = await system.queue(partitions=2)
    sent = await system.send(queue, 10)
    consumer = await system.consumer(queue, commit_every=0.01)
    await collect(consumer, 4, most=4)
    await collect(consumer, 2, most=2)
    await until(lambda: consumer.committed(Partition(queue, 1)) == sent[3])
    await consumer.close()
    assert await system.offsets() == {Partition(queue, 1): sent[3]}
    assert body_numbers(await collect(await system.consumer(queue), 6)) == [5, 6, 7, 8, 9, 10]


async def test_commits_are_mirrored_to_the_service(system: System) -> None:
    """Lag shows in the service; a step back is mirrored only after a seek."""
    queue = await system.queue()
    place, sent = Partition(queue, 1), await system.send(queue, 10)

    async def commit(number: int, *, seek: bool = False) -> tuple[str | None, int | None]:
        consumer = await system.consumer(queue, mirror=True, group="mirrored")
        if seek:
            await consumer.seek(place, sent[number])
        else:
            await collect(consumer, 1)
        await consumer.commit({place: sent[number]})
        await consumer.close()
        shown = (await system.client.offsets(queue.name, "mirrored")).partitions[1]
        return shown.offset, shown.lag

    assert await commit(7) == (sent[7], 2)
    await system.client.commit(queue.name, "mirrored", {1: sent[9]})
    assert await commit(8) == (sent[9], 0)
    assert await commit(2, seek=True) == (sent[2], 7)


async def test_a_mirror_that_fails_spoils_no_commit(system: System) -> None:
    """A failing mirror spoils no commit: the offset in the coordination service counts."""
    queue = await system.queue()
    sent = await system.send(queue, 1)
    consumer = await system.consumer(queue, mirror=True)
    await collect(consumer, 1)
    await system.client.delete_queue(queue.name)
    await consumer.commit()
    await consumer.close()
    assert await system.offsets() == {Partition(queue, 1): sent[0]}


async def test_lag_is_what_lies_behind_the_commits(system: System) -> None:
    """Lag counts messages behind the commits, with and without recorded offsets; it needs no mirror."""
    queue, other = await system.queue(partitions=2), await system.queue()
    sent = await system.send(queue, 10)
    await system.send(queue, 4, 2)
    await system.send(other, 5)
    consumer = await system.consumer(queue, other)
    expected = {Partition(queue, 1): 10, Partition(queue, 2): 4, Partition(other, 1): 5}
    assert await consumer.lag() == expected
    await collect(consumer, 19)
    await consumer.commit({Partition(queue, 1): sent[6]})
    assert await consumer.lag() == expected | {Partition(queue, 1): 3}
