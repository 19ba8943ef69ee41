"""The messages that were read and not handed out yet, in turn by partition."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import msgspec

from qdo.group.offsets import PartitionOwnership
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
        messages: At least one message, each after the last one returned before.
    """

    partition: Partition
    messages: list[Message]


def estimate_bytes(messages: Sequence[Message]) -> int:
    """Returns the approximate bytes of the bodies. Packs them, because that is the fastest way to sum the sizes."""
    bodies = [message.body for message in messages]
    try:
        return len(msgspec.msgpack.encode(bodies))
    except OverflowError:  # a JSON number beyond 64 bits
        return len(repr(bodies))


class BufferedSlice(NamedTuple):
    """Messages that were taken from the fetch buffer.

    Attributes:
        row: The partition's row.
        fetch_epoch: The row's epoch when they were taken.
        messages: At least one message.
    """

    row: PartitionOwnership
    fetch_epoch: int
    messages: list[Message]


class FetchBuffer:
    """The fetched messages of all partitions that were not handed out yet.

    Attributes:
        count: Number of messages, including those of paused partitions.
        size: Approximate bytes of their bodies.
    """

    def __init__(self) -> None:
        self.count = 0
        self.size = 0
        self._ready: dict[Partition, PartitionOwnership] = {}
        self._handed_out: dict[Partition, PartitionOwnership] = {}
        self._last: list[tuple[BufferedSlice, str | None]] = []

    def put(self, row: PartitionOwnership, messages: list[Message]) -> None:
        body_size = -(-estimate_bytes(messages) // len(messages))
        row.chunks.append((messages, body_size))
        self._change_counts(row, len(messages), body_size)
        self.refresh(row)

    def clear(self, row: PartitionOwnership) -> None:
        self.count -= row.count
        self.size -= row.size
        row.chunks.clear()
        row.start = row.count = row.size = 0
        row.pending_call = None
        row.fetch_epoch += 1
        self.refresh(row)

    def refresh(self, row: PartitionOwnership) -> None:
        """Lets :meth:`take` use a partition, or not, after a change of its messages or state."""
        if row.may_be_read and row.count:
            self._ready.setdefault(row.partition, row)
        elif self._ready.get(row.partition) is row:
            del self._ready[row.partition]

    def take(self, most: int, skip: Collection[Partition] = ()) -> list[BufferedSlice]:
        """Takes at most ``most`` messages, in equal shares from the partitions at the head of the queue.

        Unused shares go to other partitions. Partitions from which messages were taken go to the end of the queue.
        """
        chosen = [row for partition, row in self._ready.items() if partition not in skip][:most]
        if not chosen:
            return []
        shares = divide_equally([row.count for row in chosen], most)
        return [self._take_from_row(row, share) for row, share in zip(chosen, shares, strict=True)]

    def hand_out(self, taken: list[BufferedSlice], *, stopped: bool = False) -> list[Batch]:
        """Turns the taken messages into batches; from now on they count as handed out.

        Messages of partitions that were revoked or moved meanwhile are dropped. Messages of partitions that are paused
        now, or all messages if ``stopped``, go back into the buffer.
        """
        batches = []
        self._last = []
        for piece in taken:
            row, messages = piece.row, piece.messages
            if row.fetch_epoch != piece.fetch_epoch:
                continue
            if stopped or not row.may_be_read:
                self._put_back(piece)
                continue
            self._last.append((piece, row.position))
            self._handed_out[row.partition] = row
            row.position = messages[-1].id
            batches.append(Batch(row.partition, messages))
        return batches

    def recall(self) -> None:
        """Puts the last batches back into the buffer, because they did not reach the caller, and resets the positions.

        Messages of partitions that were revoked or moved meanwhile are dropped.
        """
        last, self._last = self._last, []
        for piece, before in last:
            if piece.row.fetch_epoch == piece.fetch_epoch:
                piece.row.position = before
                self._put_back(piece)

    def settle(self, skip: Collection[Partition] = ()) -> list[PartitionOwnership]:
        """Counts handed-out messages as processed, except those of ``skip``; returns the rows concerned."""
        return [self._handed_out.pop(partition) for partition in list(self._handed_out) if partition not in skip]

    def _take_from_row(self, row: PartitionOwnership, share: int) -> BufferedSlice:
        taken: list[Message] = []
        while share > 0 and row.chunks:
            messages, body_size = row.chunks[0]
            end = min(row.start + share, len(messages))
            piece = messages[row.start : end] if row.start or end < len(messages) else messages
            if end == len(messages):
                row.chunks.popleft()
                row.start = 0
            else:
                row.start = end
            share -= len(piece)
            self._change_counts(row, -len(piece), body_size)
            taken = taken + piece if taken else piece
        del self._ready[row.partition]
        self.refresh(row)
        return BufferedSlice(row, row.fetch_epoch, taken)

    def _put_back(self, taken: BufferedSlice) -> None:
        row, messages = taken.row, taken.messages
        if row.start:
            rest, body_size = row.chunks.popleft()
            row.chunks.appendleft((rest[row.start :], body_size))
            row.start = 0
        body_size = -(-estimate_bytes(messages) // len(messages))
        row.chunks.appendleft((messages, body_size))
        self._change_counts(row, len(messages), body_size)
        self.refresh(row)

    def _change_counts(self, row: PartitionOwnership, messages: int, body_size: int) -> None:
        row.count += messages
        row.size += messages * body_size
        self.count += messages
        self.size += messages * body_size


def divide_equally(counts: list[int], most: int) -> list[int]:
    """Divides ``most`` equally among partitions; the rest goes to the first ones that have more messages.

    Args:
        counts: The messages of each partition, at least 1 each, for at most ``most`` partitions.
        most: Max sum of the shares.
    """
    equal = most // len(counts)
    shares = [min(count, equal) for count in counts]
    remainder = most - sum(shares)
    for index, count in enumerate(counts):
        if not remainder:
            break
        extra = min(remainder, count - shares[index])
        shares[index] += extra
        remainder -= extra
    return shares
