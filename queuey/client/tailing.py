"""Following a queue live, without I/O: which read comes next, and how long to pause before it.

::

    unplaced ──read of the newest──▶ placed ──read with wait──▶ placed ──▶ …
        │                              │
        └──────── a failure that may pass: pause, the same read again

*unplaced*: no ``since`` was given, so the first read only finds the horizon, from which on everything is new.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from queuey.client.calls.call import Call
from queuey.client.calls.read_calls import GivenEarly, Query, ReadOptions, checked_wait, read, resumed
from queuey.client.errors import ClientError, InvalidArgument
from queuey.client.http.attempts import Patience
from queuey.client.results import Page

_SHORTEST_POLL = 0.5
"""Seconds. A server that does not hold a request open is asked no more often than this."""


def start_query(queue: str, options: ReadOptions) -> Query:
    """Returns the query to follow a queue with: its partitions merged by time by default.

    Raises:
        InvalidArgument: It is to run backwards or to an end.
    """
    options.setdefault("merge", True)
    query = Query(queue=queue, **options)
    if query.order != "ascending" or query.before is not None or query.until is not None:
        raise InvalidArgument("a live read goes forwards and has no end: leave out order, before and until")
    return query


class Tailing:
    """The state of a live read.

    Args:
        query: What to read, from ``since`` on; without it from now on.
        wait: Seconds for which the server may hold a request open.
        patience: Decides how long failures are put up with.
        clock: Monotonic seconds.
    """

    def __init__(self, query: Query, wait: float, patience: Patience, clock: Callable[[], float]) -> None:
        self._query = query
        self._wait = checked_wait(wait)
        self._patience = patience
        self._clock = clock
        self._asked = 0.0
        self._given = GivenEarly()

    @property
    def _unplaced(self) -> bool:
        return self._query.since is None and self._query.after is None

    def call(self) -> Call[Page]:
        """Returns the read to send now."""
        self._asked = self._clock()
        if self._unplaced:
            return read(msgspec.structs.replace(self._query, order="descending", limit=1, early=False))
        return read(self._query, self._wait)

    def took(self, page: Page) -> tuple[Page, float] | None:
        """Takes the answer.

        Returns:
            The page to hand on, without messages that were given early, and the seconds to pause after that; None: it
            only says where to begin, and is not handed on.
        """
        self._patience.restored()
        if self._unplaced:
            self._query = msgspec.structs.replace(self._query, since=page.horizon)
            return None
        self._query = resumed(self._query, page)
        fresh = self._fresh(page) if self._query.early else page
        if page.messages or page.more:
            return fresh, 0.0
        shortest = min(_SHORTEST_POLL, self._wait)
        return fresh, max(0.0, shortest - (self._clock() - self._asked))

    def _fresh(self, page: Page) -> Page:
        """Leaves out what was given early; the next read asks only for what is above that."""
        messages = tuple(message for message in page.messages if self._given.is_new("", message))
        if not page.more:
            self._given.pass_over(page.horizon)
        self._query = msgspec.structs.replace(self._query, early=self._given.marks())
        return msgspec.structs.replace(page, messages=messages)

    def pause_after(self, error: ClientError) -> float | None:
        """Returns the seconds to wait before the next read; None if the error is to be raised."""
        return self._patience.pause_after(error)
