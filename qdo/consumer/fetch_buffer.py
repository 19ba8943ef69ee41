"""The fetched messages, and the order in which partitions are handed out."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import msgspec

from qdo.consumer.owned_partition import OwnedPartition
from qdo.partitions import Partition
from queuey.client import Message


class Batch(NamedTuple):
    """Messages of one partition, in order.

    Example:
        >>> from qdo import Consumer
        >>> from queuey.client import AsyncClient
        >>> with Consumer(AsyncClient()) as consumer:
        ...     (first,) = consumer.assign({"orders": [1]})
        ...     consumer.seek(first, "earliest")
        ...     (batch,) = consumer.poll()
        >>> batch.partition.number, [message.body for message in batch.messages]
        (1, ['one apple', 'two eggs'])

    Attributes:
        partition: The partition.
        messages: At least one; each comes after the last one handed out before.
    """

    partition: Partition
    messages: list[Message]


def weigh(messages: Sequence[Message]) -> int:
    """Returns about how many bytes the bodies take. They are packed, as that is the fastest way to sum them up."""
    bodies = [message.body for message in messages]
    try:
        return len(msgspec.msgpack.encode(bodies))
    except OverflowError:  # a JSON number beyond 64 bits
        return len(repr(bodies))


class BufferedSlice(NamedTuple):
    """Messages that were taken from the fetch buffer.

    Attributes:
        fetch_epoch: Of the partition, when they were taken.
        messages: At least one.
    """

    row: OwnedPartition
    fetch_epoch: int
    messages: list[Message]


class FetchBuffer:
    """The messages that are held, of all partitions.

    Attributes:
        count: Messages held, those of paused partitions included.
        size: Bytes of their bodies, about.
    """

    def __init__(self) -> None:
        self.count = 0
        self.size = 0
        self._ready: dict[Partition, OwnedPartition] = {}
        self._out: dict[Partition, OwnedPartition] = {}
        self._last: list[tuple[BufferedSlice, str | None]] = []

    def put(self, row: OwnedPartition, messages: list[Message]) -> None:
        each = -(-weigh(messages) // len(messages))
        row.chunks.append((messages, each))
        self._count(row, len(messages), each)
        self.refresh(row)

    def clear(self, row: OwnedPartition) -> None:
        """Drops what is held of a partition, and what is under way."""
        self.count -= row.count
        self.size -= row.size
        row.chunks.clear()
        row.start = row.count = row.size = 0
        row.pending_call = None
        row.fetch_epoch += 1
        self.refresh(row)

    def refresh(self, row: OwnedPartition) -> None:
        """Updates whether messages of a partition may be handed out."""
        if row.live and row.count:
            self._ready.setdefault(row.partition, row)
        elif self._ready.get(row.partition) is row:
            del self._ready[row.partition]

    def take(self, most: int, skip: Collection[Partition] = ()) -> list[BufferedSlice]:
        """Returns messages, at most so many, in equal shares from the partitions whose turn it is.

        Unused shares go to others. Partitions whose messages were handed out go to the end of the line.
        """
        chosen = [row for partition, row in self._ready.items() if partition not in skip][:most]
        if not chosen:
            return []
        shares = share([row.count for row in chosen], most)
        return [self._take(row, share) for row, share in zip(chosen, shares, strict=True)]

    def hand_out(self, taken: list[BufferedSlice], *, stopped: bool = False) -> list[Batch]:
        """Hands out the messages that were taken; from now on they count as handed out.

        What is not to be handed out any more, because its partition was revoked or moved meanwhile, is dropped. What
        cannot be handed out now, because its partition was paused or everything is stopped, is taken back.
        """
        batches = []
        self._last = []
        for one in taken:
            row, messages = one.row, one.messages
            if row.fetch_epoch != one.fetch_epoch:
                continue
            if stopped or not row.live:
                self._put_back(one)
                continue
            self._last.append((one, row.position))
            self._out[row.partition] = row
            row.position = messages[-1].id
            batches.append(Batch(row.partition, messages))
        return batches

    def recall(self) -> None:
        """Puts the messages back that were handed out last, because they did not reach the caller."""
        last, self._last = self._last, []
        for one, before in last:
            if one.row.fetch_epoch == one.fetch_epoch:
                one.row.position = before
                self._put_back(one)

    def settle(self, skip: Collection[Partition] = ()) -> None:
        """Counts the messages that were handed out as processed, except those of some partitions."""
        for partition in [partition for partition in self._out if partition not in skip]:
            row = self._out.pop(partition)
            row.auto_commit_position = row.position

    def _take(self, row: OwnedPartition, share: int) -> BufferedSlice:
        """Returns at most so many messages of a partition, at least one. A whole chunk is given as it is."""
        taken: list[Message] = []
        while share > 0 and row.chunks:
            messages, each = row.chunks[0]
            end = min(row.start + share, len(messages))
            part = messages[row.start : end] if row.start or end < len(messages) else messages
            if end == len(messages):
                row.chunks.popleft()
                row.start = 0
            else:
                row.start = end
            share -= len(part)
            self._count(row, -len(part), each)
            taken = taken + part if taken else part
        del self._ready[row.partition]
        self.refresh(row)
        return BufferedSlice(row, row.fetch_epoch, taken)

    def _put_back(self, taken: BufferedSlice) -> None:
        row, messages = taken.row, taken.messages
        if row.start:
            rest, each = row.chunks.popleft()
            row.chunks.appendleft((rest[row.start :], each))
            row.start = 0
        each = -(-weigh(messages) // len(messages))
        row.chunks.appendleft((messages, each))
        self._count(row, len(messages), each)
        self.refresh(row)

    def _count(self, row: OwnedPartition, messages: int, each: int) -> None:
        row.count += messages
        row.size += messages * each
        self.count += messages
        self.size += messages * each


def share(counts: list[int], most: int) -> list[int]:
    """Shares ``most`` out among partitions that have so many each: equally, and what some cannot use goes to the next.

    Args:
        counts: What each has, at least 1; no more of them than ``most``.
        most: The sum of the shares at most.
    """
    equal = most // len(counts)
    shares = [min(count, equal) for count in counts]
    left = most - sum(shares)
    for index, count in enumerate(counts):
        if not left:
            break
        more = min(left, count - shares[index])
        shares[index] += more
        left -= more
    return shares
