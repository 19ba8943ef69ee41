"""SQLite stores whose statements are counted where SQLite runs them, and the one door to their connections."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import apsw

from queuey.model import ids
from queuey.model.errors import StoreUnavailable
from queuey.storage import bridge
from queuey.storage.sqlite import SqliteOptions, SqliteStore, connection, open_store
from queuey.storage.sqlite.database import Database
from queuey.storage.sqlite.sweep import Sweep
from queuey.storage.sqlite.transaction import Transaction
from tests.backends import APP, UNSYNCED
from tests.replacing import replace


@contextmanager
def prepared_connections(prepare: Callable[[apsw.Connection], object]) -> Iterator[None]:
    """Prepares each connection that a store opens during the block."""
    connect = connection.connect

    def connect_prepared(*arguments: Any, **options: Any) -> apsw.Connection:  # noqa: ANN401 - as they come
        opened = connect(*arguments, **options)
        prepare(opened)
        return opened

    with replace(connect, connect_prepared):
        yield


@contextmanager
def counted_store(
    directory: Path, statements: list[str], clock: Callable[[], int] = ids.now_ticks
) -> Iterator[SqliteStore]:
    """Opens a store with an application, and adds each statement to a list. Sweeps are disabled."""

    def trace(opened: apsw.Connection) -> None:
        opened.trace_v2(apsw.SQLITE_TRACE_STMT, lambda event: statements.append(event["sql"]))

    with prepared_connections(trace):
        store = open_store(directory, options=SqliteOptions(clock=clock, sweep_interval=None, pragmas=UNSYNCED))
        bridge.run(store.applications.create_application(APP))
        yield store
        store.close()


def database_of(store: SqliteStore) -> Database:
    """Returns the store's connections and its writer."""
    return store._db


def sweep_of(store: SqliteStore) -> Sweep:
    """Returns the store's sweep, whose steps a test takes one by one."""
    return store._sweep


@contextmanager
def busy_writer(store: SqliteStore) -> Iterator[None]:
    """Keeps the writer's thread in one transaction until the block ends; other writes queue up meanwhile."""
    began, go_on = threading.Event(), threading.Event()

    def work(_transaction: Transaction) -> None:
        began.set()
        go_on.wait(60)

    def perform() -> None:
        with suppress(StoreUnavailable):  # Its own deadline may pass.
            database_of(store).writer.perform(work)

    busy = threading.Thread(target=perform)
    busy.start()
    try:
        assert began.wait(60)
        yield
    finally:
        go_on.set()
        busy.join(60)
