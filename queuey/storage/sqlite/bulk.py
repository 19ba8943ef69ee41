"""Whole ranges out of the embedded store and into it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

from queuey.errors import TooLate
from queuey.messages import Message, Queue
from queuey.storage import items as items_of
from queuey.storage.sqlite import rows
from queuey.storage.sqlite.messages import SqliteMessages
from queuey.storage.sqlite.transaction import Transaction

LOADED_AT_ONCE = 1000


class SqliteBulk(SqliteMessages):
    """The bulk contract on SQLite."""

    def load(self, queue: Queue, messages: Iterable[Message]) -> int:
        """See the contract. Each thousand is one transaction."""
        written = 0
        left = iter(messages)
        while some := list(islice(left, LOADED_AT_ONCE)):
            _check(queue, some)

            def work(transaction: Transaction, some: list[Message] = some) -> int:
                transaction.verify(queue)
                return _load(transaction, queue, some)

            written += self._db.writer.perform(work)
        return written

    def load_unread(self, queue: Queue, messages: Sequence[Message]) -> int:
        """See the contract. One transaction, in which ``last`` is what any reader of any process may have passed."""
        _check(queue, messages)
        lowest = min((message.ticks for message in messages), default=None)

        def work(transaction: Transaction) -> int:
            transaction.verify(queue)
            if lowest is None:
                return 0
            if lowest <= transaction.last:
                raise TooLate(written=False)
            return _load(transaction, queue, messages)

        return self._db.writer.perform(work)


def _check(queue: Queue, messages: Sequence[Message]) -> None:
    for message in messages:
        items_of.check_partition(queue, message.partition)
        items_of.check_text(message.body)


def _load(transaction: Transaction, queue: Queue, messages: Sequence[Message]) -> int:
    """Stores messages at their ids; returns how many were alive."""
    # So that watchers in other processes notice ids that lie below those minted before.
    transaction.advance()
    alive = [message for message in messages if message.expires > transaction.now]
    for message in alive:
        lifetime = message.expires - max(transaction.now, message.ticks)
        meta = rows.encode_meta(message.meta)
        transaction.put(queue.qid << 8 | message.partition, message.position, lifetime, message.body, meta)
    return len(alive)
