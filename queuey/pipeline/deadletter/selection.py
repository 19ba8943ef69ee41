"""Selection of dead letters, where they are stored, and their errors. Needs no Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fnmatch import translate
from typing import Annotated, NamedTuple

import msgspec

from queuey import deadletters
from queuey.deadletters import SUFFIX, DeadLetter, DeadLetterFilter
from queuey.errors import QueueChanged
from queuey.ids import FIRST, Position, following
from queuey.messages import Message, Queue, Slice
from queuey.spark import open_stores
from queuey.spark.options import Pattern, StoreOptions
from queuey.storage import Store, bridge
from queuey.titles import instant, titled

PAGE_SIZE = 500
"""Max messages in a page."""


class DeadLetterUnit(msgspec.Struct, frozen=True, gc=False):
    """Some partitions of a queue of dead letters, for one task after the other.

    Attributes:
        qid: Its messages that are meant; others are not touched.
    """

    queue: str
    qid: int
    partitions: tuple[int, ...]


MessageLocation = tuple[int, Position]
"""A partition and a position in it."""


class FoundDeadLetter(NamedTuple):
    """A stored message, parsed as a dead letter."""

    message: Message
    dead_letter: DeadLetter


class DeadLetterSample(msgspec.Struct, frozen=True, order=True):
    """One dead letter of a class. The newest ones are kept."""

    at: float
    lies_in: str
    partition: int
    id: str
    text: str


class ErrorClass(msgspec.Struct, frozen=True):
    """Dead letters with the same error.

    Attributes:
        queue: Where they came from.
        error: Class of the error.
        text: What its texts have in common: numbers, ids and quoted strings are replaced.
        count: How many dead letters.
        first, last: When the first and the last of them was given up, seconds since 1970.
        attempts: The most that one of them was tried.
        samples: The newest ones, newest first.
    """

    queue: str
    error: str
    text: str
    count: Annotated[int, titled("letters")]
    first: Annotated[float, titled(unit=instant)]
    last: Annotated[float, titled(unit=instant)]
    attempts: int
    samples: tuple[DeadLetterSample, ...]


def units_of(options: StoreOptions, wanted: DeadLetterFilter) -> list[DeadLetterUnit]:
    """Finds where the dead letters lie, as units of work: a partition each, whole queues where a limit counts by queue.

    Queues that are named and never had dead letters give none.

    Raises:
        QueueNotFound: The queue that holds the dead letters by option is not there.
    """
    store = open_stores.opened(options)
    if wanted.dead_queue is not None:
        found = [open_stores.queue(store, options, wanted.dead_queue)]
    else:
        places: set[str] = set()
        for name in wanted.queues:
            places |= deadletters.queues_for(name, *(queue.dead_letter for queue in _there(store, options, [name])))
        for pattern in wanted.patterns:
            places |= {queue.name for queue in open_stores.selected(options, Pattern(translate(pattern + SUFFIX)))}
            places |= {queue.dead_letter for queue in open_stores.selected(options, Pattern(translate(pattern)))}
        found = _there(store, options, sorted(places - {""}))
    return [unit for queue in found for unit in _units(queue, wanted)]


def _there(store: Store, options: StoreOptions, names: Iterable[str]) -> list[Queue]:
    return [queue for name in names if (queue := open_stores.existing(store, options, name))]


def _units(queue: Queue, wanted: DeadLetterFilter) -> Iterator[DeadLetterUnit]:
    numbers = [
        number for number in range(1, queue.partitions + 1) if not wanted.partitions or number in wanted.partitions
    ]
    if wanted.limit is not None:
        yield DeadLetterUnit(queue.name, queue.qid, tuple(numbers))
    else:
        for number in numbers:
            yield DeadLetterUnit(queue.name, queue.qid, (number,))


def pages(
    store: Store,
    queue: Queue,
    unit: DeadLetterUnit,
    wanted: DeadLetterFilter,
    *,
    start: MessageLocation | None = None,
    page: int = PAGE_SIZE,
) -> Iterator[tuple[list[FoundDeadLetter], MessageLocation]]:
    """Yields the dead letters of a unit that are meant, as they come; other messages are passed over.

    Args:
        store: The store.
        queue: Of the unit.
        unit: Where to read.
        wanted: Which dead letters; its limit counts from ``start``.
        start: From where on; None: from the beginning.
        page: How many messages are read at a time.

    Yields:
        Dead letters, perhaps none, and where the next ones would be.

    Raises:
        QueueChanged: The queue was deleted or purged meanwhile.
    """
    left = wanted.limit
    for number in unit.partitions:
        lower = FIRST
        if start is not None and number <= start[0]:
            if number < start[0]:
                continue
            lower = start[1]
        for messages in bridge.iterate(store.bulk.scan(queue, Slice(number, lower, limit=page))):
            found: list[FoundDeadLetter] = []
            for message in messages:
                dead_letter = deadletters.stored_dead_letter(message, queue.name)
                if dead_letter is not None and wanted.takes(dead_letter):
                    found.append(FoundDeadLetter(message, dead_letter))
                if len(found) == left:
                    break
            yield found, (number, following(message.position))
            if left is not None:
                left -= len(found)
                if not left:
                    return


def all_pages(
    store: Store, options: StoreOptions, units: Iterable[DeadLetterUnit], wanted: DeadLetterFilter
) -> Iterator[list[FoundDeadLetter]]:
    """Yields the dead letters of units that are meant; none of queues that are gone or were purged since."""
    for unit in units:
        queue = open_stores.existing(store, options, unit.queue, unit.qid)
        if queue is None:
            continue
        try:
            for found, _ in pages(store, queue, unit, wanted):
                if found:
                    yield found
        except QueueChanged:
            continue
