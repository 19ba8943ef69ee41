"""Walking over any number of queues in tasks: the driver cuts the list of names into ranges, tasks list them anew."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import msgspec

from queuey.messages import Queue
from queuey.pipeline.options import RANGE_SIZE
from queuey.spark import open_stores
from queuey.spark.errors import OptionError
from queuey.spark.options import Pattern, Selection, StoreOptions, Subscribe
from queuey.storage import Store

PAGE_SIZE = 1000
"""Max queues in a listing."""


class NameRange(msgspec.Struct, frozen=True):
    """Some queues: those that are named, else all from one name up to another.

    Attributes:
        names: Queues by name.
        start: The first name, inclusive.
        stop: The first name that is not meant any more; None: all that follow.
        regex: Only those whose whole name it matches.
    """

    names: tuple[str, ...] = ()
    start: str = ""
    stop: str | None = None
    regex: str | None = None


def name_ranges_of(
    options: StoreOptions, selection: Selection | None, size: int = RANGE_SIZE, *, page: int = PAGE_SIZE
) -> list[NameRange]:
    """Cuts the queues that are meant into stretches.

    Cost: that of listing all names once, whatever the queues hold; what is named is not looked up.

    Args:
        options: The store.
        selection: Which queues; None: all.
        size: About how many queues in a stretch.
        page: How many in one listing.
    """
    store = open_stores.opened(options)
    owner = open_stores.application(store, options)
    if isinstance(selection, Subscribe):
        return [NameRange(tuple(names)) for names in _chunks(selection.names, max(1, min(size, 100)))]
    regex = selection.regex if isinstance(selection, Pattern) else None
    starts = _starts(store, owner, size, page)
    return [
        NameRange(start=start, stop=stop, regex=regex) for start, stop in zip(starts, [*starts[1:], None], strict=True)
    ]


def check(options: StoreOptions, selection: Selection) -> None:
    """Makes sure that the queues that are named are there, and that a pattern is one.

    Raises:
        OptionError: It is no regular expression.
        QueueNotFound: One is not there.
    """
    if isinstance(selection, Pattern):
        try:
            re.compile(selection.regex)
        except re.error as error:
            raise OptionError(f"{selection.regex!r} is no regular expression: {error}.") from error
    if isinstance(selection, Subscribe):
        open_stores.selected(options, selection)


def queues(options: StoreOptions, stretch: NameRange, *, page: int = PAGE_SIZE) -> Iterator[list[Queue]]:
    """Lists the queues of a range as they are now, page by page."""
    store = open_stores.opened(options)
    if stretch.names:
        yield [found for name in stretch.names if (found := open_stores.existing(store, options, name))]
        return
    owner = open_stores.application(store, options)
    regex = None if stretch.regex is None else re.compile(stretch.regex)
    for listed in open_stores.queue_pages(store, owner, stretch.start, page=page):
        kept = [queue for queue in listed if stretch.stop is None or queue.name < stretch.stop]
        if kept:
            yield kept if regex is None else [queue for queue in kept if regex.fullmatch(queue.name)]
        if len(kept) < len(listed):
            return


def _starts(store: Store, owner: str, size: int, page: int) -> list[str]:
    """Returns where ranges begin: at about every ``size``-th name."""
    # The first range begins before all names: queues may come before what is the first one now.
    found = [""]
    seen = 0
    for listed in open_stores.queue_pages(store, owner, page=min(page, size)):
        if seen >= len(found) * size:
            found.append(listed[0].name)
        seen += len(listed)
    return found


def _chunks(names: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    for start in range(0, len(names), size):
        yield names[start : start + size]
