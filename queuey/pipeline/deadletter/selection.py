"""Selects dead letters, finds where they are stored, and describes their errors. Needs no Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fnmatch import translate
from typing import Annotated

import msgspec

from queuey.model import deadletters
from queuey.model.deadletters import SUFFIX, DeadLetter, DeadLetterFilter
from queuey.model.errors import QueueChanged
from queuey.model.ids import FIRST
from queuey.model.messages import Queue, Slice
from queuey.model.titles import instant, titled
from queuey.spark import open_stores
from queuey.spark.options import Pattern, StoreOptions
from queuey.storage import Store, bridge

PAGE_SIZE = 500


class DeadLetterUnit(msgspec.Struct, frozen=True, gc=False):
    """Some partitions of a dead-letter queue: the unit of work of a task.

    Attributes:
        qid: The ``qid`` of the queue; after a purge, its new messages are not touched.
    """

    queue: str
    qid: int
    partitions: tuple[int, ...]


class DeadLetterSample(msgspec.Struct, frozen=True, order=True):
    """One dead letter of a class."""

    at: float
    lies_in: str
    partition: int
    id: str
    text: str


class ErrorClass(msgspec.Struct, frozen=True):
    """Dead letters with the same error.

    Attributes:
        queue: The original queue.
        error: Class of the error.
        text: Common form of the error texts: numbers, ids and quoted strings are replaced.
        count: Number of dead letters.
        first, last: When the first and the last one failed for good, in seconds since 1970.
        attempts: Max attempts of one dead letter.
        samples: The newest dead letters, newest first.
    """

    queue: str
    error: str
    text: str
    count: Annotated[int, titled("letters")]
    first: Annotated[float, titled(unit=instant)]
    last: Annotated[float, titled(unit=instant)]
    attempts: int
    samples: tuple[DeadLetterSample, ...]


def find_units(options: StoreOptions, selected: DeadLetterFilter) -> list[DeadLetterUnit]:
    """Returns the units of selected dead letters: one per partition, or one per queue if there is a limit per queue.

    Skips named queues that never had dead letters.

    Raises:
        QueueNotFound: The given dead-letter queue does not exist.
    """
    store = open_stores.opened(options)
    if selected.dead_queue is not None:
        dead_queues = [open_stores.find_queue(store, options, selected.dead_queue)]
    else:
        places: set[str] = set()
        for name in selected.queues:
            places |= deadletters.list_dead_letter_queues(
                name, *(queue.dead_letter for queue in _find_existing_queues(store, options, [name]))
            )
        for pattern in selected.patterns:
            places |= {
                queue.name for queue in open_stores.find_selected_queues(options, Pattern(translate(pattern + SUFFIX)))
            }
            places |= {
                queue.dead_letter for queue in open_stores.find_selected_queues(options, Pattern(translate(pattern)))
            }
        dead_queues = _find_existing_queues(store, options, sorted(places - {""}))
    return [unit for queue in dead_queues for unit in _make_units(queue, selected)]


def _find_existing_queues(store: Store, options: StoreOptions, names: Iterable[str]) -> list[Queue]:
    return [queue for name in names if (queue := open_stores.find_existing_queue(store, options, name))]


def _make_units(queue: Queue, selected: DeadLetterFilter) -> Iterator[DeadLetterUnit]:
    numbers = [
        number for number in range(1, queue.partitions + 1) if not selected.partitions or number in selected.partitions
    ]
    if selected.limit is not None:
        yield DeadLetterUnit(queue.name, queue.qid, tuple(numbers))
    else:
        for number in numbers:
            yield DeadLetterUnit(queue.name, queue.qid, (number,))


def read_pages(
    store: Store, options: StoreOptions, units: Iterable[DeadLetterUnit], letter_filter: DeadLetterFilter
) -> Iterator[list[DeadLetter]]:
    for unit in units:
        queue = open_stores.find_existing_queue(store, options, unit.queue, unit.qid)
        if queue is None:
            continue
        try:
            yield from filter(None, _read_unit(store, queue, unit, letter_filter))
        except QueueChanged:
            continue


def _read_unit(
    store: Store, queue: Queue, unit: DeadLetterUnit, letter_filter: DeadLetterFilter
) -> Iterator[list[DeadLetter]]:
    remaining = letter_filter.limit
    for number in unit.partitions:
        for messages in bridge.iterate(store.bulk.scan(queue, Slice(number, FIRST, limit=PAGE_SIZE))):
            letters = (deadletters.decode_stored_dead_letter(message, queue.name) for message in messages)
            selected = [letter for letter in letters if letter is not None and letter_filter.matches_letter(letter)]
            yield selected[:remaining]
            if remaining is not None:
                remaining -= len(selected[:remaining])
                if not remaining:
                    return
