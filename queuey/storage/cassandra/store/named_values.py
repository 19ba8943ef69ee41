"""Which of the named messages that a range read found are shown: those that are the values of their names.

A process that stops while it replaces a value leaves both in the queue (:mod:`..write.names`).
So messages that are written as values have a mark, and a reader by time looks at the rows of their names. Whatever
another process has left half done there is finished or undone first, as by a call for the name. Below the horizon it
can always be: that lies D behind the clock, and D > W.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from queuey.messages import Location, Message, Queue
from queuey.storage.cassandra.lightweight_transactions import new_number
from queuey.storage.cassandra.message_codec import NamedMessage
from queuey.storage.cassandra.read.reading import Gathered
from queuey.storage.cassandra.store.names import TABLE
from queuey.storage.cassandra.write.names import Found, NameRow, find_shown
from queuey.storage.cassandra.write.row_changes import RowChange, StoreParts

AT_ONCE = 64
"""Max rows of names that one read asks for side by side."""

Marked = dict[str, set[Location]]
"""Messages that were written as values of names."""
Verdicts = dict[str, Found]
"""States of names."""


async def find(parts: StoreParts, queue: Queue, marked: Marked, *, early: bool = False) -> Verdicts:
    """Reads the rows of the names of messages.

    A row need not be the newest: whoever shows a newer value has removed this one before. If it does not say that
    the message was the value and all was done, the name is looked at as by a call for it.

    ``early``: the row will do; a value that is being written is none yet, and nothing is undone.
    """
    found: Verdicts = {}
    names, driver, consistency = list(marked), parts.driver, parts.options.catalogue_read
    for at in range(0, len(names), AT_ONCE):
        some = names[at : at + AT_ONCE]
        answers = await driver.ask_all([TABLE.statements.look(queue.qid, name, consistency) for name in some])
        for name, rows in zip(some, answers, strict=True):
            row = TABLE.row(rows)
            verdict = Found(row if isinstance(row, NameRow) else None)
            settled = row is not None and row.state == "done" and not verdict.replaced
            if not early and (not settled or marked[name] != {verdict.value[0]}):
                change = RowChange(parts, queue, (TABLE, name))
                with parts.driver.calls.deadline.unnoticed():
                    verdict = await change.run(partial(find_shown, name=name, new_version=new_number))
            found[name] = verdict
    return found


def marked(messages: Iterable[Message]) -> Marked:
    found: Marked = {}
    for message in messages:
        if type(message) is NamedMessage:  # Each message of each page pays for this: isinstance costs more.
            found.setdefault(message.name, set()).add(_location(message))
    return found


def shown(gathered: Gathered, found: Verdicts, *, waits: bool) -> Gathered:
    """Leaves out what is not the value of its name. What may become it yet ends the page, if that ``waits`` for it."""
    messages: list[Message] = []
    for message in gathered.messages:
        shows = not isinstance(message, NamedMessage) or found[message.name].shows(_location(message))
        if shows is None and waits:
            return Gathered(messages, message.position, more=False)
        if shows:
            messages.append(message)
    return gathered._replace(messages=messages)


def _location(message: Message) -> Location:
    return message.partition, message.position
