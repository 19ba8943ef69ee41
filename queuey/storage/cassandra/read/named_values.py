"""Which of the named messages that a range read found are shown: those that are the values of their names.

A process that stops while it replaces a value leaves both in the queue (:mod:`queuey.storage.cassandra.write.names`).
So messages that are written as values have a mark, and a reader by time looks at the rows of their names. Whatever
another process has left half done there is finished or undone first, as by a call for the name. Below the horizon it
can always be: that lies D behind the clock, and D > W.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from functools import partial

from queuey.errors import Outcome, StoreUnavailable
from queuey.messages import Location, Message, Queue
from queuey.storage.cassandra.driver import Rows
from queuey.storage.cassandra.lightweight_transactions import new_number
from queuey.storage.cassandra.message_codec import NamedMessage
from queuey.storage.cassandra.names import TABLE
from queuey.storage.cassandra.read.reading import Gathered
from queuey.storage.cassandra.write.names import Found, NameRow, find_shown
from queuey.storage.cassandra.write.step_run import StepRun, StoreParts
from queuey.storage.deadlines import Deadline

AT_ONCE = 64
"""Rows of names that one read looks at side by side."""

Marked = dict[str, set[Location]]
"""Messages that were written as values of names."""
Verdicts = dict[str, Found]
"""What names stand for."""
Done = Callable[[Verdicts | None, Exception | None], None]


class NamedValues:
    """Looks at what names stand for, for readers by time.

    Args:
        parts: Of the store.
        deadline: Of calls.
    """

    def __init__(self, parts: StoreParts, deadline: Deadline) -> None:
        self._parts = parts
        self._deadline = deadline

    def look(self, queue: Queue, marked: Marked) -> Verdicts:
        """Looks at the names of messages.

        Raises:
            StoreUnavailable: It failed.
        """
        if not marked:
            return {}

        def begin(done: Done) -> Callable[[], Outcome]:
            self.begin(queue, marked, done)
            return lambda: "none"

        found: Verdicts = self._deadline.result(begin, "Cassandra did not say in time what names stand for")
        return found

    def begin(self, queue: Queue, marked: Marked, done: Done) -> None:
        """Begins to look at names, at least one; ``done`` is called at the end, in any thread. Never raises."""
        _Looks(self._parts, queue, marked, done).start()


def marked(messages: Iterable[Message]) -> Marked:
    """Returns the messages that were written as values of names."""
    found: Marked = {}
    for message in messages:
        if isinstance(message, NamedMessage):
            found.setdefault(message.name, set()).add(_location(message))
    return found


def shown(gathered: Gathered, found: Verdicts, *, descending: bool) -> Gathered:
    """Leaves out what is not the value of its name. What may become it yet ends the page, if that ascends."""
    messages: list[Message] = []
    for message in gathered.messages:
        shows = not isinstance(message, NamedMessage) or found[message.name].shows(_location(message))
        if shows is None and not descending:
            return Gathered(messages, message.position, more=False)
        if shows:
            messages.append(message)
    return gathered._replace(messages=messages)


def _location(message: Message) -> Location:
    return message.partition, message.position


class _Looks:
    """Looks at names, some side by side, without a thread: each answer begins the next look."""

    def __init__(self, parts: StoreParts, queue: Queue, marked: Marked, done: Done) -> None:
        self._parts = parts
        self._queue = queue
        self._marked = marked
        self._waiting = iter(marked)
        self._left = len(marked)
        self._done = done
        self._found: Verdicts = {}
        self._lock = threading.Lock()

    def start(self) -> None:
        """Begins. Never raises."""
        for _ in range(min(AT_ONCE, self._left)):
            self._next()

    def _next(self) -> None:
        with self._lock:
            name = next(self._waiting, None)
        if name is not None:
            look = TABLE.statements.look(self._queue.qid, name, self._parts.options.catalogue_read)
            self._parts.driver.send(look, partial(self._read, name))

    def _read(self, name: str, rows: Rows | None, error: StoreUnavailable | None) -> None:
        """Takes a row, which need not be the newest: whoever shows a newer value has removed this one before.

        If the row does not say that the message was the value and all was done, the name is looked at as by a call.
        """
        if error is not None:
            self._took(name, None, error)
            return
        row = TABLE.row(rows or [])
        found = Found(row if isinstance(row, NameRow) else None)
        if row is not None and row.state == "done" and not found.replaced and self._marked[name] == {found.value[0]}:
            self._took(name, found, None)
        else:
            StepRun(self._parts).begin(
                self._queue, (TABLE, name), find_shown(name, new_number), partial(self._took, name)
            )

    def _took(self, name: str, found: Found | None, error: Exception | None) -> None:
        with self._lock:
            if not self._left:
                return  # Another look has failed.
            self._left = 0 if found is None else self._left - 1
            if found is not None:
                self._found[name] = found
            ended = not self._left
        if ended:
            self._done(None if found is None else self._found, error)
        else:
            self._next()
