"""The embedded store: one SQLite file that several processes on one machine can share.

With ``sync="full"`` every acknowledged message is on disk. Ids are made inside the write transaction, so the horizon is
exact and no read delay is needed.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from queuey.model.ids import StoreClock
from queuey.model.messages import Acknowledgement, Queue
from queuey.storage import Store
from queuey.storage.deadlines import Deadline
from queuey.storage.sqlite import connection as driver
from queuey.storage.sqlite import schema
from queuey.storage.sqlite.bulk import SqliteBulk
from queuey.storage.sqlite.catalogue import SqliteApplications, SqliteCatalogue
from queuey.storage.sqlite.claim_logs import SqliteClaimLogs, SqliteCovers
from queuey.storage.sqlite.committed_arrivals import CommittedArrivals
from queuey.storage.sqlite.connection import SqliteOptions
from queuey.storage.sqlite.database import Database, threaded
from queuey.storage.sqlite.groups import SqliteGroups
from queuey.storage.sqlite.messages import SqliteMessages
from queuey.storage.sqlite.names import SqliteNames
from queuey.storage.sqlite.offsets import SqliteOffsets
from queuey.storage.sqlite.records import SqliteLedger, SqliteRecords
from queuey.storage.sqlite.sweep import Sweep
from queuey.storage.sqlite.transaction import Transaction

__all__ = ["SqliteOptions", "SqliteStore", "check", "open_store"]


class SqliteStore(Store):
    """A store in a SQLite file. ``ping`` checks the free space and advances the clock of ids."""

    name = "sqlite"
    clock_difference = 1.0

    def __init__(self, directory: Path, options: SqliteOptions) -> None:
        database = self._db = Database(directory, options, Deadline(options.deadline))
        self._arrivals = CommittedArrivals(database)
        self._sweep = Sweep(database)
        self._applications = SqliteApplications(database)
        clock = StoreClock(options.clock)
        messages, records = SqliteMessages(database, self._arrivals), SqliteRecords(database)
        super().__init__(
            catalogue=SqliteCatalogue(database),
            messages=messages,
            keyed_posts=messages,
            names=SqliteNames(database),
            bulk=SqliteBulk(database, messages),
            applications=self._applications,
            offsets=SqliteOffsets(database),
            groups=SqliteGroups(database, records, clock),
            ledger=SqliteLedger(database, records),
            records=records,
            claim_logs=SqliteClaimLogs(database),
            covers=SqliteCovers(database),
            clock=clock,
        )
        self.readers = options.readers

    def adopt(self, loop: asyncio.AbstractEventLoop | None) -> None:
        self._db.writer.adopt(loop)
        self._db.readers.adopt(loop)

    @threaded
    def ping(self) -> None:
        self._db.verify_free_space()
        self._db.writer.perform(Transaction.advance)
        with self._db.readers.lend() as connection:
            self._db.read_clock(connection)

    def close(self, timeout: float = 10.0) -> None:
        until = time.monotonic() + timeout
        self._arrivals.close()
        self._sweep.stop(timeout)
        self._db.close(max(0.0, until - time.monotonic()))
        self._applications.forget()

    def sweep(self) -> int:
        return self._sweep.run()

    async def acknowledgement(self) -> Acknowledgement:
        if self._db.options.sync == "full":
            return Acknowledgement("fsync", "on this machine's disk (fsync) before the answer")
        return Acknowledgement(
            "written",
            "handed to the operating system before the answer; a crash of the machine may lose the last writes",
        )

    def guarantee(self, queue: Queue) -> str:  # noqa: ARG002 - the contract's signature
        return (
            "exact: a reader that goes on from its cursor misses no acknowledged message; "
            "a 503 with outcome none left nothing; X-After orders messages"
        )

    def read_delay(self, queue: Queue) -> float:
        return queue.read_delay or 0.0

    @threaded
    def statistics(self) -> dict[str, float]:
        writer = self._db.writer
        return {
            "store_commits_total": writer.commits,
            "store_operations_total": writer.operations,
            "store_messages_appended_total": writer.appended,
            "store_messages_swept_total": self._sweep.removed,
            "store_longest_commit_seconds": writer.longest,
            "store_log_pages": self._sweep.log_pages,
            "store_clock_behind_seconds": self._db.ids_ahead(),
        }


def open_store(directory: Path, *, options: SqliteOptions | None = None) -> SqliteStore:
    """Opens the embedded store in a directory. Creates the directory and the file if they do not exist.

    Raises:
        StoreUnavailable: The directory or its file cannot be used.
        StoreIncompatible: The file is not a store, or has another format.
    """
    return SqliteStore(Path(directory), options or SqliteOptions())


def check(directory: Path) -> list[str]:
    """Returns the defects that SQLite's integrity check finds in the store in a directory.

    Raises:
        StoreUnavailable: The file cannot be read.
    """
    return schema.check(driver.file_of(Path(directory)))
