"""The partitions that a member owns: their states in the group, the consumer's positions, and the messages held ready.

A row is one ownership of a partition. Its states are in :mod:`qdo.consumer.rebalance.partition_table`. Its owner, the
consumer, works on it::

    fresh ──on_assign over──► announced ──place known──► opened ◄──pause / resume──► paused

A partition that comes back later is another row, which begins at the committed offset.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Collection, Sequence
from typing import Literal, NamedTuple

import msgspec

from qdo.coordination import CommittedOffset, OwnedOffset
from qdo.errors import InvalidArgument
from qdo.partitions import Partition
from queuey.client import EARLIEST, Message, id_after, order_of

State = Literal["owned", "revoking", "releasing", "unsure", "lost"]


class OwnedPartition:
    """One partition of a session.

    Args:
        partition: The partition.
        held: As it was taken; None: it is unsure.

    Attributes:
        state: See the module.
        claimed: What was recorded when it was taken.
        held: With the version that the next commit needs.
        pending_offset: The offset that is to be recorded; None: there is none.
        pending_back: It may lie before the recorded one.
        waiting_commits: The commits that wait for it.
        note: What is to be noted beside it.
        version_known: The version is not in doubt.
        notified: The owner was notified that it has the partition, and not yet that it lost it.
        calls: The calls to the owner about it, except for that of its loss.
        released: It is free for others.
        end_notified: Its owner was notified of everything.

    What its owner knows of it:

    Attributes:
        begun: It works on it.
        announced: The user's callback was called for it.
        position: The last message handed out, or the point after which the next one lies; None: the beginning.
        seek_pending: It was moved since the last commit, so that this one may go back.
        fetch_from: From where to read on; None until it is known where to begin, and nothing is read before.
        opened: It is read.
        paused: Nothing of it is handed out for now.
        count: Messages held.
        size: Bytes of their bodies, about.
        chunks: They themselves, as they were read, each with the bytes of a body; of the first all from ``start`` on.
        fetch_epoch: Fetch generation, raised by seek and revoke: what was read before is not handed out any more.
        more: There certainly is more to read (True), there was none at the last read (False), not known (None).
        pending_call: The request that it is part of.
        failures: Reads in a row that failed.
        rest_until: Instant (of the loop) before which it is not read.
    """

    def __init__(self, partition: Partition, held: OwnedOffset | None) -> None:
        self.partition = partition
        self.state: State = "unsure" if held is None else "owned"
        self.held = held
        self.claimed = CommittedOffset() if held is None else held.offset
        self.pending_offset: str | None = None
        self.pending_back = False
        self.note = self.claimed.note
        self.version_known = True
        self.notified = self.released = False
        self.calls: list[asyncio.Task[bool]] = []
        self.end_notified = held is None
        self.waiting_commits: list[PendingCommit] = []
        self.begun = self.announced = self.opened = self.paused = self.seek_pending = False
        self.position = self.recorded
        self.fetch_from: str | None = None
        self.more: bool | None = None
        self.pending_call: object | None = None
        self.count = self.size = self.fetch_epoch = self.failures = 0
        self.rest_until = 0.0
        self.chunks: deque[tuple[list[Message], int]] = deque()
        self.start = 0

    @property
    def recorded(self) -> str | None:
        """The offset that is recorded, as far as that is known."""
        return None if self.held is None else self.held.offset.id

    @property
    def commits(self) -> bool:
        """Commits are accepted."""
        return self.state in {"owned", "revoking"}

    @property
    def finished(self) -> bool:
        """It is released and its owner was notified of everything."""
        return self.released and self.end_notified

    def request(self) -> tuple[OwnedOffset, str | None]:
        assert self.held is not None  # noqa: S101 - it is owned
        offset = msgspec.structs.replace(self.held.offset, note=self.note)
        identifier = self.recorded if self.pending_offset is None else self.pending_offset
        return msgspec.structs.replace(self.held, offset=offset), identifier

    def want(self, offset: str, *, back: bool = False) -> None:
        """Makes an offset the one that is to be recorded, in the place of what was wanted before."""
        self.pending_offset = offset
        self.pending_back = self.pending_back or self.seek_pending or back
        self.seek_pending = False

    def answer(self, waiting: int | None = None, *, recorded: bool) -> None:
        """Answers the waiting calls, or the first of them; when all are answered, no commit is wanted any more."""
        answered = self.waiting_commits[:waiting]
        del self.waiting_commits[:waiting]
        if waiting is None:
            self.seek_pending = self.seek_pending or (self.pending_back and not recorded)
            self.pending_offset, self.pending_back = None, False
        for each in answered:
            each.answer(self.partition, recorded=recorded)

    def fail(self, error: Exception, *, due: float | None = None) -> None:
        """Gives the waiting calls an error: all of them, or those whose time is over."""
        late = [commit for commit in self.waiting_commits if due is None or commit.deadline < due]
        self.waiting_commits = [commit for commit in self.waiting_commits if commit not in late]
        for commit in late:
            commit.fail(error)

    # Its owner's part.

    @property
    def closed(self) -> bool:
        """It is not this member's any more, or is being given up."""
        return self.state != "owned"

    @property
    def live(self) -> bool:
        """Its messages may be handed out."""
        return self.opened and not self.paused and self.state == "owned"

    @property
    def lowest_commit(self) -> str | None:
        """The offset to be recorded, or else the recorded one; no commit goes below it without a seek back."""
        return self.recorded if self.pending_offset is None else self.pending_offset

    def accepts(self, identifier: str, *, back: bool = False) -> bool:
        """Returns whether an id is worth recording as the offset: whether it differs from what is recorded.

        Args:
            identifier: The id.
            back: It may lie before what was recorded.

        Raises:
            InvalidArgument: It is no id, was not handed out yet, or lies before the recorded offset without a seek.
        """
        if self.recorded is not None and identifier == self.recorded == self.lowest_commit:
            return False
        try:
            order = order_of(identifier)
        except (TypeError, ValueError) as error:
            raise InvalidArgument(f"{self.partition}: {identifier!r} is not a message id") from error
        if self.position is None or order > order_of(self.position):
            raise InvalidArgument(f"{self.partition}: {identifier} was not returned by poll, so it cannot be committed")
        if self.commits_beyond(order) and not back:
            raise InvalidArgument(f"{self.partition}: {identifier} is before {self.lowest_commit}, which was committed")
        return True

    def commits_beyond(self, order: tuple[int, int]) -> bool:
        """Returns whether the offset to be recorded, or the recorded one, is after a message, with no seek since."""
        return self.lowest_commit is not None and not self.seek_pending and order < order_of(self.lowest_commit)

    def place(self, position: str | None) -> None:
        """Begins after a position; None: at the beginning."""
        self.position = position
        self.fetch_from = EARLIEST if position in {None, EARLIEST} else id_after(str(position))

    def seek(self, position: str) -> None:
        """Goes on after another position. The fetched messages must have been dropped."""
        self.place(position)
        self.more = None
        self.rest_until = 0.0
        self.seek_pending = True


class PendingCommit:
    """A commit of some partitions, until each of them has its answer.

    Args:
        count: How many.
        deadline: Until when it is tried again while the service does not answer, by the loop's clock.
    """

    def __init__(self, count: int, deadline: float) -> None:
        self.deadline = deadline
        self.end: asyncio.Future[frozenset[Partition]] = asyncio.get_running_loop().create_future()
        self.end.add_done_callback(_looked_at)
        self._left = count
        self._lost: set[Partition] = set()

    def answer(self, partition: Partition, *, recorded: bool) -> None:
        self._left -= 1
        if not recorded:
            self._lost.add(partition)
        if not self._left and not self.end.done():
            self.end.set_result(frozenset(self._lost))

    def fail(self, error: Exception) -> None:
        if not self.end.done():
            self.end.set_exception(error)


def _looked_at(end: asyncio.Future[frozenset[Partition]]) -> None:
    """Avoids asyncio's warning if a commit fails for which no call waits any more."""
    if not end.cancelled():
        end.exception()


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

    def settle(self, skip: Collection[Partition] = ()) -> list[OwnedPartition]:
        """Counts the messages that were handed out as processed, except those of some partitions; returns the rest."""
        return [self._out.pop(partition) for partition in list(self._out) if partition not in skip]

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
