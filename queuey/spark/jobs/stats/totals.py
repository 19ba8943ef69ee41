"""Sums over measures of queues: what tasks fold, and what the driver puts together. Pure."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Literal

import msgspec

from queuey import ids
from queuey.messages import Measure, Queue

Order = Literal["messages", "bytes", "rate", "skew"]
ORDERS: tuple[Order, ...] = ("messages", "bytes", "rate", "skew")

LEAST_EVEN = 10
"""Messages per partition below which an uneven spread means nothing."""


class QueueFigures(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One queue.

    Attributes:
        partitions: That it has.
        messages: Alive, delayed ones included.
        bytes: Of their bodies.
        largest: Messages in the fullest partition.
        exact: All was counted; else some is estimated.
        oldest, newest: When its first and last message were stored, or are due: seconds since 1970.
    """

    queue: str
    partitions: int
    messages: int
    bytes: int
    largest: int
    exact: bool
    oldest: float
    newest: float

    @property
    def rate(self) -> float:
        """Messages a second between the oldest and the newest."""
        return rate(self.messages, self.oldest, self.newest)

    @property
    def skew(self) -> float:
        """The fullest partition in relation to the mean over all: from 1 (even) to the number of partitions."""
        return self.largest * self.partitions / self.messages


class RecentCounts(msgspec.Struct, frozen=True):
    """How many messages a queue got lately; ``more``: so many were counted, and there are more."""

    minute: int
    hour: int
    more: bool = False


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """Many queues.

    Attributes:
        queues: How many were measured.
        empty: How many of them hold nothing.
        partitions: How many partitions hold anything.
        messages, bytes, exact, oldest, newest: As in :class:`QueueFigures`, over all queues.
        top: For each order the first queues in it, the greatest first.
    """

    queues: int = 0
    empty: int = 0
    partitions: int = 0
    messages: int = 0
    bytes: int = 0
    exact: bool = True
    oldest: float | None = None
    newest: float | None = None
    top: dict[Order, tuple[QueueFigures, ...]] = {}


def rate(messages: int, oldest: float, newest: float) -> float:
    """Returns messages a second from the first to the last; what came within a second came in that second."""
    return (messages - 1) / max(1.0, newest - oldest)


def figures(queue: Queue, measures: Sequence[Measure]) -> QueueFigures | None:
    """Sums up a queue's partitions; None: it holds nothing."""
    if not any(one.count for one in measures):
        return None
    return QueueFigures(
        queue=queue.name,
        partitions=queue.partitions,
        messages=sum(one.count for one in measures),
        bytes=sum(one.size for one in measures),
        largest=max(one.count for one in measures),
        exact=all(one.exact for one in measures),
        oldest=ids.ticks_to_seconds(min(one.oldest for one in measures)[0]),
        newest=ids.ticks_to_seconds(max(one.newest for one in measures)[0]),
    )


class TotalsBuilder:
    """Folds queues into a tally, holding no more than its lists.

    Args:
        top: Length of the lists.
    """

    def __init__(self, top: int) -> None:
        self._top = top
        self._queues = self._empty = self._partitions = self._messages = self._bytes = 0
        self._exact = True
        self._oldest, self._newest = math.inf, -math.inf
        self._lists: dict[Order, list[tuple[float, str, QueueFigures]]] = {order: [] for order in ORDERS}

    def add(self, queue: Queue, measures: Sequence[Measure]) -> None:
        """Takes in a queue."""
        self._queues += 1
        found = figures(queue, measures)
        if found is None:
            self._empty += 1
            return
        self._partitions += len(measures)
        self._messages += found.messages
        self._bytes += found.bytes
        self._exact = self._exact and found.exact
        self._oldest = min(self._oldest, found.oldest)
        self._newest = max(self._newest, found.newest)
        for order, listed in self._lists.items():
            value = _value(found, order)
            if value is None:
                continue
            entry = (value, found.queue, found)
            if len(listed) < self._top:
                heapq.heappush(listed, entry)
            elif listed and listed[0][:2] < entry[:2]:
                heapq.heapreplace(listed, entry)

    def tally(self) -> Totals:
        """Returns what was taken in so far."""
        some = self._partitions > 0
        lists = ((order, sorted(listed, reverse=True)) for order, listed in self._lists.items())
        return Totals(
            queues=self._queues,
            empty=self._empty,
            partitions=self._partitions,
            messages=self._messages,
            bytes=self._bytes,
            exact=self._exact,
            oldest=self._oldest if some else None,
            newest=self._newest if some else None,
            top={order: tuple(entry[2] for entry in listed) for order, listed in lists if listed},
        )


def together(tallies: Iterable[Totals], top: int) -> Totals:
    """Puts tallies of different queues together.

    Args:
        tallies: Each with lists at least as long.
        top: Length of the lists.
    """
    tallies = list(tallies)
    lists: dict[Order, tuple[QueueFigures, ...]] = {}
    for order in ORDERS:
        listed = [found for tally in tallies for found in tally.top.get(order, ())]
        listed.sort(key=partial(_place, order), reverse=True)
        if listed[:top]:
            lists[order] = tuple(listed[:top])
    oldest = [tally.oldest for tally in tallies if tally.oldest is not None]
    newest = [tally.newest for tally in tallies if tally.newest is not None]
    return Totals(
        queues=sum(tally.queues for tally in tallies),
        empty=sum(tally.empty for tally in tallies),
        partitions=sum(tally.partitions for tally in tallies),
        messages=sum(tally.messages for tally in tallies),
        bytes=sum(tally.bytes for tally in tallies),
        exact=all(tally.exact for tally in tallies),
        oldest=min(oldest, default=None),
        newest=max(newest, default=None),
        top=lists,
    )


def _place(order: Order, found: QueueFigures) -> tuple[float, str]:
    return _value(found, order) or 0.0, found.queue


def _value(found: QueueFigures, order: Order) -> float | None:
    """Returns what a queue is ordered by; None: it has no place in this order."""
    if order == "skew" and (found.partitions < 2 or found.messages < LEAST_EVEN * found.partitions):  # noqa: PLR2004 - one is even
        return None
    value: float = getattr(found, order)
    return value
