"""Ranges of queue names for tasks: the driver divides the list of queues, and each task lists its range again."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import msgspec

from queuey.model.messages import Queue
from queuey.pipeline.options import MAX_RANGE_SIZE
from queuey.spark import open_stores
from queuey.spark.errors import OptionError
from queuey.spark.options import Pattern, Selection, StoreOptions, Subscribe
from queuey.storage import Store

PAGE_SIZE = 1000


class NameRange(msgspec.Struct, frozen=True):
    """Some queues of an application: a list of names, or a range of names.

    Attributes:
        names: Names of queues; if empty, the range counts.
        start: The first name, inclusive.
        stop: The end of the range, exclusive; None means no end.
        regex: Only queues whose whole name it matches.
    """

    names: tuple[str, ...] = ()
    start: str = ""
    stop: str | None = None
    regex: str | None = None


def divide_names(
    options: StoreOptions, selection: Selection | None, size: int = MAX_RANGE_SIZE, *, page: int = PAGE_SIZE
) -> list[NameRange]:
    """Divides the selected queues into ranges.

    Lists all names once; does not look up queues that are selected by name.

    Args:
        options: The store.
        selection: The queues; all if None.
        size: Approximate number of queues in a range; at most 100 if they are selected by name.
        page: Max queues in one listing.
    """
    store = open_stores.opened(options)
    owner = open_stores.application(store, options)
    if isinstance(selection, Subscribe):
        return [NameRange(tuple(names)) for names in _chunks(selection.names, max(1, min(size, 100)))]
    regex = selection.regex if isinstance(selection, Pattern) else None
    starts = _find_range_starts(store, owner, size, page)
    return [
        NameRange(start=start, stop=stop, regex=regex) for start, stop in zip(starts, [*starts[1:], None], strict=True)
    ]


def check_selection(options: StoreOptions, selection: Selection) -> None:
    """Checks that named queues exist, or that a pattern is valid.

    Raises:
        OptionError: The pattern is not a regular expression.
        QueueNotFound: A queue does not exist.
    """
    if isinstance(selection, Pattern):
        try:
            re.compile(selection.regex)
        except re.error as error:
            raise OptionError(f"{selection.regex!r} is not a regular expression: {error}.") from error
    if isinstance(selection, Subscribe):
        open_stores.find_selected_queues(options, selection)


def list_queues(options: StoreOptions, name_range: NameRange, *, page: int = PAGE_SIZE) -> Iterator[list[Queue]]:
    store = open_stores.opened(options)
    if name_range.names:
        yield [queue for name in name_range.names if (queue := open_stores.find_existing_queue(store, options, name))]
        return
    owner = open_stores.application(store, options)
    regex = None if name_range.regex is None else re.compile(name_range.regex)
    for listed in open_stores.list_queue_pages(store, owner, name_range.start, page=page):
        kept = [queue for queue in listed if name_range.stop is None or queue.name < name_range.stop]
        if kept:
            yield kept if regex is None else [queue for queue in kept if regex.fullmatch(queue.name)]
        if len(kept) < len(listed):
            return


def _find_range_starts(store: Store, owner: str, size: int, page: int) -> list[str]:
    # A queue may be created before the first one.
    starts = [""]
    seen = 0
    for listed in open_stores.list_queue_pages(store, owner, page=min(page, size)):
        if seen >= len(starts) * size:
            starts.append(listed[0].name)
        seen += len(listed)
    return starts


def _chunks(names: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    for start in range(0, len(names), size):
        yield names[start : start + size]
