"""What to ask the service for next. Pure.

Partitions of which more is known to be there are read at once, few at a time and much of each. Partitions that were
not looked at yet are read at once too, all together. Those that had nothing wait together in long polls.

A poll is never broken off because one more partition wants to wait: the service would hold its place, one of a few,
until the time asked for is over. Instead the newcomers wait in a poll of their own, which ends together with the
others, and then all wait in one. When there are too many polls, the newcomers are looked at in turn without waiting.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from qdo.partitions import Partition, Queue

QUEUES = 100
"""Queues that the service reads in one call, at most."""
PARTITIONS = 1000
"""Partitions to read in one call, at most."""
READS = 2
"""Calls that do not wait, under way at the same time."""
SLICE = 100
"""Messages of one partition that make a read of it worthwhile when there is more than can be held."""
GATHER = 0.5
"""Seconds. Polls that would end this near to each other are made one."""


class ReadablePartition(NamedTuple):
    """A partition that could be read now.

    Attributes:
        partition: The partition.
        since: From where on.
        held: Messages of it that are held.
        more: See :class:`qdo.consumer.fetch.fetch_state.FetchState`.
    """

    partition: Partition
    since: str
    held: int
    more: bool | None


class BufferSpace(NamedTuple):
    """How much may be read.

    Attributes:
        free: Messages that may still be held, whosever they are; 0: none.
        low: There is enough room again to read on where something is still held.
        reserve: Messages that a partition may have in any case if it holds none.
    """

    free: int
    low: bool
    reserve: int


class InFlightCalls(NamedTuple):
    """What is under way.

    Attributes:
        reads: Calls that do not wait.
        polls: When those that wait are to end, each.
        most_polls: How many of these there may be.
    """

    reads: int
    polls: Sequence[float]
    most_polls: int


class PlannedCall(NamedTuple):
    """One call to make.

    Attributes:
        wants: What to read.
        limit: Messages of each partition.
        wait: Seconds to wait if there is nothing.
    """

    wants: tuple[ReadablePartition, ...]
    limit: int
    wait: float = 0.0


class FetchPlan(NamedTuple):
    """What to do now.

    Attributes:
        asks: The calls to make.
        recheck: When to plan anew even if nothing happens; None: never.
    """

    asks: list[PlannedCall]
    recheck: float | None = None


def space_for(messages: int, size: int, partitions: int, *, prefetch_messages: int, prefetch_bytes: int) -> BufferSpace:
    """Returns how much may be read by those who hold so many messages of so many bytes of so many partitions."""
    reserved = prefetch_messages // 4
    common = max(1, prefetch_messages - reserved)
    if size >= prefetch_bytes:
        return BufferSpace(0, low=False, reserve=1)
    free = max(0, common - messages)
    return BufferSpace(free, low=2 * free >= common, reserve=max(1, reserved // max(1, partitions)))


def plan_fetches(
    wants: Iterable[ReadablePartition],
    room: BufferSpace,
    pending_calls: InFlightCalls,
    now: float,
    *,
    page: int,
    wait: float,
) -> FetchPlan:
    """Decides which calls to make.

    Args:
        wants: The partitions that could be read, in the order in which they became so; none that is part of a call.
        room: How much may be read.
        pending_calls: What is under way.
        now: The present instant, of any monotonic clock.
        page: Messages of one partition at most.
        wait: Seconds that a poll may wait.
    """
    sure: list[ReadablePartition] = []
    unknown: list[ReadablePartition] = []
    dry: list[ReadablePartition] = []
    for want in wants:
        if not want.held or (room.low and want.held < page):
            (sure if want.more else unknown if want.more is None else dry).append(want)
    reads = max(0, READS - pending_calls.reads)
    # Those first that wait for their first read: whoever has more always has, and would keep them waiting for ever.
    asks = _some_of_all(unknown, room, page, 0.0)[:reads]
    if sure:
        asks += _much_of_few(sure, room, page, reads - len(asks))
    if not dry:
        return FetchPlan(asks)
    polls, recheck = _polls(dry, room, pending_calls, now, page=page, wait=wait, reads=reads - len(asks))
    return FetchPlan(asks + polls, recheck)


def _polls(
    dry: list[ReadablePartition],
    room: BufferSpace,
    pending_calls: InFlightCalls,
    now: float,
    *,
    page: int,
    wait: float,
    reads: int,
) -> tuple[list[PlannedCall], float | None]:
    """Decides how those wait that had nothing."""
    # One that is overdue has lost its connection, or the service is slow; nobody waits for it.
    ends = [end for end in pending_calls.polls if end + GATHER > now]
    if ends:
        if min(ends) - now < GATHER:
            return [], min(ends) + GATHER
        wait = min(wait, min(ends) - now)
    places = pending_calls.most_polls - len(pending_calls.polls)
    if places <= 0:
        return _some_of_all(dry, room, page, 0.0)[: max(0, reads)], None
    return _some_of_all(dry, room, page, wait)[:places], None


def _much_of_few(wants: list[ReadablePartition], room: BufferSpace, page: int, reads: int) -> list[PlannedCall]:
    """Reads as many partitions as there is room for worthwhile reads; without room, a little of all that hold none.

    When nothing is under way they are divided between two calls: the service works on one while the answer to the
    other is taken in, and from then on they take turns.
    """
    if not room.free:
        return [PlannedCall(next(_calls(wants)), min(page, room.reserve))][:reads]
    chosen = wants[: max(1, room.free // min(SLICE, page))]
    limit = min(page, max(SLICE, room.free // len(chosen)))
    first = -(-len(chosen) // max(1, reads))
    parts = [chosen[start : start + first] for start in range(0, len(chosen), first)]
    return [PlannedCall(next(_calls(part)), limit) for part in parts][:reads]


def _some_of_all(wants: list[ReadablePartition], room: BufferSpace, page: int, wait: float) -> list[PlannedCall]:
    limit = min(page, max(room.reserve, room.free // max(1, len(wants))))
    return [PlannedCall(call, limit, wait) for call in _calls(sorted(wants))]


def _calls(wants: Iterable[ReadablePartition]) -> Iterator[tuple[ReadablePartition, ...]]:
    """Divides wants, in their order, by what fits into one call."""
    call: list[ReadablePartition] = []
    queues: set[Queue] = set()
    for want in wants:
        queue = want.partition.queue
        if len(call) == PARTITIONS or (len(queues) == QUEUES and queue not in queues):
            yield tuple(call)
            call, queues = [], set()
        call.append(want)
        queues.add(queue)
    if call:
        yield tuple(call)
