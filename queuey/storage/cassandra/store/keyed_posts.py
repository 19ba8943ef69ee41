"""Posts with idempotency keys in Cassandra: :mod:`..write.post_keys` decides, :mod:`..write.step_run` acts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from queuey.errors import Outcome
from queuey.ids import Position
from queuey.messages import NewMessage, PostKey, PostResult, Queue
from queuey.storage import items as items_of
from queuey.storage.cassandra.lightweight_transactions import new_number
from queuey.storage.cassandra.store.claim_logs import AppendsInFlight
from queuey.storage.cassandra.waiting.arrivals import PolledArrivals
from queuey.storage.cassandra.write.post_keys import KeyRow, PostedIds, carry_out
from queuey.storage.cassandra.write.step_run import RowStatements, RowTable, StepRun, StoreParts
from queuey.storage.contracts.keyed_posts import Done, KeyedPosts

_STATEMENTS = RowStatements("idempotency_keys", "key")
PREPARED = (_STATEMENTS.find, _STATEMENTS.change)
"""Statements sent from threads that must never wait."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(PostedIds).decode


class CassandraKeyedPosts(KeyedPosts):
    _parts: StoreParts
    _appends: AppendsInFlight
    _arrivals: PolledArrivals

    def begin_append_once(
        self,
        queue: Queue,
        items: Sequence[NewMessage],
        key: PostKey,
        done: Done,
        *,
        after: Position | None = None,
    ) -> Callable[[], Outcome]:
        items_of.checked(queue, items)
        run = StepRun(self._parts)

        def ended(result: PostResult | None, error: Exception | None) -> None:
            if result is not None and not result.replayed:
                self._arrivals.appended(queue, items)
            if not run.withdrawn:
                done(result, error)

        row = _table(key), key.text
        steps = carry_out(key, new_number)
        return run.begin(queue, row, steps, self._appends.begin(ended), items=items, after=after)


def _table(key: PostKey) -> RowTable:
    return RowTable(_STATEMENTS, lambda row: _encode(row.ids), _row, lambda _row, _now: key.seconds)


def _row(state: Any, content: bytes, messages: bytes, version: int) -> KeyRow:  # noqa: ANN401 - one of the states
    return KeyRow(state, content, _decode(messages), version)
