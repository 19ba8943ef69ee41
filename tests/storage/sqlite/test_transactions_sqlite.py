"""A write that is refused leaves nothing: the file is as if it had never been sent, whatever shares its transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, NamedTuple

from hypothesis import example, given, settings
from hypothesis import strategies as st

from queuey.model import ids
from queuey.model.errors import QueueyError, RecordChanged
from queuey.model.messages import Meta, PostKey, Queue
from queuey.storage import bridge
from queuey.storage.sqlite import SqliteOptions, SqliteStore, open_store
from queuey.storage.sqlite.transaction import Append, Transaction
from tests.backends import APP, UNSYNCED, Clock, prepare_sqlite
from tests.contract.samples import make_queue, new_message
from tests.storage.sqlite.counted import busy_writer, database_of

Act = Literal[
    "append", "append many", "append kept", "append delayed", "append once", "put", "remove", "purge", "flush"
]
ACTS: tuple[Act, ...] = Act.__args__  # type: ignore[attr-defined] # all of them
NOW = 5_000_000_000 * ids.TICKS_PER_SECOND
KNOWN = (ids.EPOCH_TICKS + NOW // 2, 7)
"""The id of the message that works put and remove."""
_TABLES = ("messages", "expiry_windows", "delayed", "clock", "idempotency_keys", "pending_deletes", "queues")


class Work(NamedTuple):
    """A write: what it does, and whether it is refused at the end. If it is alone, it is a plain append."""

    acts: Sequence[Act]
    is_refused: bool


works = st.builds(Work, st.lists(st.sampled_from(ACTS), min_size=1, max_size=4), st.booleans())


def do(act: Act, queue: Queue, transaction: Transaction) -> None:
    meta = Meta(headers=(("a", "b"),))
    match act:
        case "append":
            transaction.append(Append(queue, [new_message("x", meta=meta), new_message("x", partition=2)]))
        case "append many":
            transaction.append(Append(queue, [new_message(f"x{n}", ttl=60) for n in range(130)]))
        case "append kept":
            transaction.append(Append(queue, [new_message("k", kept=True)]))
        case "append delayed":
            transaction.append(Append(queue, [new_message("d", delay=30.0)]))
        case "append once":
            key = PostKey("key", b"content", 60)
            transaction.append_once(Append(queue, [new_message("o")]), key)
        case "put":
            transaction.put(queue.qid << 8 | 1, KNOWN, 60 * ids.TICKS_PER_SECOND, "p", None)
        case "remove":
            transaction.remove([(queue.qid << 8 | 1, KNOWN)])
        case "purge":
            transaction.make_queue_number()
            transaction.bump_catalogue_version()
        case "flush":
            transaction.flush()


def write_all(store: SqliteStore, queue: Queue, group: Sequence[Work]) -> None:
    """Writes all works in one transaction, an append by itself between every two of them."""

    def run(work: Work, transaction: Transaction) -> None:
        for act in work.acts:
            do(act, queue, transaction)
        if work.is_refused:
            raise RecordChanged("it")

    async def write() -> list[Any]:
        append: Any = Append(queue, [new_message("between")])
        with busy_writer(store):
            calls = [database_of(store).write(call) for work in group for call in (partial(run, work), append)]
            ended = asyncio.gather(*calls, return_exceptions=True)
            await asyncio.sleep(0)
        return await ended

    before = database_of(store).writer.commits
    ended = asyncio.run(write())[::2]
    bridge.run(store.ping())
    assert [isinstance(error, QueueyError) for error in ended] == [work.is_refused for work in group]
    assert database_of(store).writer.commits - before <= 3  # Of the busy work, of the group, and of the ping.


@contextmanager
def opened() -> Iterator[tuple[SqliteStore, Queue, Callable[[], Any]]]:
    """Opens a store with a queue; also yields a function that returns all that the store holds and has counted."""
    with TemporaryDirectory() as directory:
        options = SqliteOptions(clock=Clock(ids.EPOCH_TICKS + NOW), sweep_interval=None, pragmas=UNSYNCED)
        store = open_store(prepare_sqlite(Path(directory)).path, options=options)
        bridge.run(store.applications.create_application(APP))
        queue = make_queue(store, "q", partitions=2)

        def dump() -> Any:  # noqa: ANN401 - rows of all tables
            with database_of(store).readers.lend() as connection:
                rows = {table: connection.execute(f"SELECT * FROM {table}").fetchall() for table in _TABLES}
            counted = bridge.run(store.statistics())["store_messages_appended_total"]
            return counted, {table: [_without_random(table, row) for row in found] for table, found in rows.items()}

        try:
            yield store, queue, dump
        finally:
            store.close()


def _without_random(table: str, row: tuple[Any, ...]) -> tuple[Any, ...]:
    """Returns a row without the random part of ids, which differs between processes."""
    if table == "messages":
        return (*row[:2], *row[3:])
    return row[:3] if table == "idempotency_keys" else row


@settings(max_examples=15)
@given(group=st.lists(works, min_size=1, max_size=6))
@example([Work(["append"], is_refused=True), Work(["append"], is_refused=False)])
@example([Work(["append many", "append kept"], is_refused=True), Work(["put"], is_refused=False)])
@example([Work(["append delayed", "append once"], is_refused=True), Work(["append once"], is_refused=False)])
def test_all_or_nothing(group: list[Work]) -> None:
    """A file whose transaction had refused works equals one to which these were never sent, row by row."""
    with opened() as (store, queue, dump), opened() as (other, twin, dump_other):
        write_all(store, queue, group)
        # Only the appends that follow refused works are sent.
        sent = [Work([], is_refused=False) if work.is_refused else work for work in group]
        write_all(other, twin, sent)
        assert dump() == dump_other()
