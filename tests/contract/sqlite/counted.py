"""SQLite stores whose statements are counted where SQLite runs them, and the one door to their connections."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw

from queuey import ids
from queuey.storage import bridge
from queuey.storage.sqlite import SqliteOptions, SqliteStore, connection, open_store
from queuey.storage.sqlite.database import Database
from tests.backends import APP, UNSYNCED
from tests.replacing import replace


@contextmanager
def counted_store(
    directory: Path, statements: list[str], clock: Callable[[], int] = ids.now_ticks
) -> Iterator[SqliteStore]:
    """Opens a store with an application, and adds each statement to a list. Sweeps are disabled."""
    connect = connection.connect

    def traced(*arguments: Any, **options: Any) -> apsw.Connection:  # noqa: ANN401 - as they come
        opened = connect(*arguments, **options)
        opened.trace_v2(apsw.SQLITE_TRACE_STMT, lambda event: statements.append(event["sql"]))
        return opened

    with replace(connection.connect, traced):
        store = open_store(directory, options=SqliteOptions(clock=clock, sweep_interval=None, pragmas=UNSYNCED))
        bridge.run(store.applications.create_application(APP))
        yield store
        store.close()


def database_of(store: SqliteStore) -> Database:
    """Returns the store's connections and its writer."""
    return store._db
