"""Tables of the embedded store.

``messages`` is clustered by (queue and partition, id), so reading a slice is one seek and a scan. ``qp`` is
``qid << 8 | partition``: one integer instead of two columns. ``ticks`` and ``low`` are the position of
:mod:`queuey.model.ids`.

``expiry_windows`` groups the messages of a partition by the time at which their rows are removed (see
:class:`queuey.storage.sqlite.slice_reads.ExpiryWindow`). It tells the sweep what has expired, tells reads where to
start, and provides estimated counts. A commit writes a row only if it is new, its bounds widen, or a message
of its window is in the sample that is counted.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from queuey.model.errors import StoreIncompatible
from queuey.storage.sqlite import connection as driver
from queuey.storage.sqlite.connection import Connection, DatabaseError, SqliteOptions, translate

APPLICATION_ID = 0x51756575
"""Code of Queuey's files in the header of SQLite databases: ``Queu``."""
FORMAT = 1
"""Version of the tables. Each change of them raises it."""
CREATE_TABLES = """
CREATE TABLE clock (
    singleton INTEGER PRIMARY KEY CHECK (singleton = 1),
    last_ticks INTEGER NOT NULL,         -- ticks of the highest id made, or a later instant that a reader has passed
    catalogue_version INTEGER NOT NULL,  -- goes up whenever a queue is changed, purged or deleted
    next_queue_id INTEGER NOT NULL       -- next uid or qid
);
INSERT INTO clock VALUES (1, 0, 1, 1);

CREATE TABLE applications (name TEXT PRIMARY KEY, created REAL NOT NULL) WITHOUT ROWID;

CREATE TABLE keys (
    digest BLOB PRIMARY KEY,     -- SHA-256 of the key
    application TEXT NOT NULL,
    id TEXT NOT NULL,
    created REAL NOT NULL,
    expires REAL,
    note TEXT NOT NULL,
    scope TEXT                   -- JSON of a scope, NULL for no limits
) WITHOUT ROWID;
CREATE INDEX keys_by_application ON keys (application, created);

CREATE TABLE queues (
    application TEXT NOT NULL,
    name TEXT NOT NULL,
    uid INTEGER NOT NULL,
    qid INTEGER NOT NULL,
    partitions INTEGER NOT NULL,
    type TEXT NOT NULL,
    consistency TEXT NOT NULL,
    principals TEXT,
    ttl INTEGER,
    read_delay REAL,
    created REAL NOT NULL,
    max_deliveries INTEGER NOT NULL,
    dead_letter TEXT NOT NULL,
    on_ack TEXT NOT NULL,
    kind TEXT NOT NULL,
    backoff TEXT,
    facade TEXT NOT NULL,
    max_claimed INTEGER NOT NULL,
    max_claimed_per_key INTEGER NOT NULL,
    description TEXT NOT NULL,
    claims TEXT NOT NULL,
    result_ttl INTEGER NOT NULL,
    on_expiry TEXT NOT NULL,
    PRIMARY KEY (application, name)
) WITHOUT ROWID;

CREATE TABLE messages (
    queue_partition INTEGER NOT NULL,
    ticks INTEGER NOT NULL,
    low INTEGER NOT NULL,
    expires INTEGER NOT NULL,
    body NOT NULL,               -- TEXT or BLOB
    meta BLOB,                   -- msgpack of messages.Meta, NULL for none
    stored_until INTEGER,        -- of a kept message: ticks after expires; NULL: its row goes when it expires
    PRIMARY KEY (queue_partition, ticks, low)
) WITHOUT ROWID;

CREATE TABLE expiry_windows (
    queue_partition INTEGER NOT NULL,
    expired_by INTEGER NOT NULL,   -- all rows of the window go by then
    message_count INTEGER NOT NULL,
    first_ticks INTEGER NOT NULL,  -- lowest and highest ticks of ids, and the longest time from id to expires
    last_ticks INTEGER NOT NULL,
    longest_ttl INTEGER NOT NULL,
    PRIMARY KEY (queue_partition, expired_by)
) WITHOUT ROWID;
CREATE INDEX expiry_windows_by_end ON expiry_windows (expired_by);

-- Ids above clock.last_ticks: delayed messages and ids given by clients.
CREATE TABLE delayed (ticks INTEGER PRIMARY KEY);

-- Message ids (qid) of purged and deleted queues whose rows are still to be removed.
CREATE TABLE pending_deletes (qid INTEGER PRIMARY KEY);

CREATE TABLE offsets (
    uid INTEGER NOT NULL,
    consumer_group TEXT NOT NULL,
    partition INTEGER NOT NULL,  -- 0: epoch is the highest of the group's deleted rows
    ticks INTEGER,               -- with low the offset, NULL for none
    low INTEGER,
    updated_at REAL NOT NULL,
    owner INTEGER NOT NULL,      -- number of a member of the group, 0 for none
    epoch INTEGER NOT NULL,      -- under which the last owner became that, 0 if there was none
    came TEXT NOT NULL,          -- how the owner came to it, or how it was left
    note BLOB,
    PRIMARY KEY (uid, consumer_group, partition)
) WITHOUT ROWID;

-- Documents that are compared and set: schedules, moves, entries of the ledger, heads of groups.
CREATE TABLE records (
    kind TEXT NOT NULL,
    application TEXT NOT NULL,
    name TEXT NOT NULL,
    value BLOB NOT NULL,
    due INTEGER NOT NULL,      -- ticks
    version INTEGER NOT NULL,  -- a random number, another one for each value
    expires INTEGER,           -- ticks; NULL: kept until it is removed
    PRIMARY KEY (kind, application, name)
) WITHOUT ROWID;
CREATE INDEX records_by_due ON records (kind, due);
CREATE INDEX records_by_end ON records (expires) WHERE expires IS NOT NULL;

-- Claim logs. A log's newest entry always stays: its number is what the next append compares.
CREATE TABLE claims (
    queue_partition INTEGER NOT NULL,
    number INTEGER NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (queue_partition, number)
) WITHOUT ROWID;
CREATE TABLE claim_snapshots (
    queue_partition INTEGER NOT NULL,
    number INTEGER NOT NULL,  -- of the newest entry that it stands for
    body BLOB NOT NULL,
    named INTEGER NOT NULL,   -- 1: an entry of the log has named it
    PRIMARY KEY (queue_partition, number)
);

CREATE TABLE idempotency_keys (
    qid INTEGER NOT NULL,
    key TEXT NOT NULL,
    content BLOB NOT NULL,     -- hash of what was posted
    locations BLOB NOT NULL,   -- msgpack of partition, ticks and low of each message
    expires INTEGER NOT NULL,  -- ticks
    PRIMARY KEY (qid, key)
) WITHOUT ROWID;
CREATE INDEX idempotency_keys_by_end ON idempotency_keys (expires);

CREATE TABLE names (
    qid INTEGER NOT NULL,
    name TEXT NOT NULL,
    version INTEGER NOT NULL,  -- a random number, another one for each value
    content BLOB NOT NULL,     -- hash of the message
    location BLOB NOT NULL,    -- msgpack of partition, ticks and low of the message
    replaced BLOB NOT NULL,    -- the same of the one before, until the claim log knows that it is replaced
    expires INTEGER NOT NULL,  -- ticks
    PRIMARY KEY (qid, name)
) WITHOUT ROWID;
CREATE INDEX names_by_end ON names (expires);

-- What is a duplicate in dedup queues, as far as the states of their claim logs do not say it.
CREATE TABLE covers (
    queue_partition INTEGER NOT NULL,
    digest BLOB NOT NULL,
    until INTEGER NOT NULL,  -- ticks
    PRIMARY KEY (queue_partition, digest)
) WITHOUT ROWID;

-- Consumer groups with members managed by the service. Times are milliseconds since 1970.
CREATE TABLE group_rows (
    application TEXT NOT NULL,
    name TEXT NOT NULL,
    kind INTEGER NOT NULL,     -- 0: subscription, 1: member, 2: chunk of the plan
    key INTEGER NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (application, name, kind, key)
);
CREATE TABLE group_sessions (
    application TEXT NOT NULL,
    name TEXT NOT NULL,
    member INTEGER NOT NULL,   -- 0: the row says when queues were searched
    uid INTEGER NOT NULL,      -- of a queue that the member is asked about; 0: the row is of its session
    seen INTEGER NOT NULL,
    expires INTEGER NOT NULL,
    PRIMARY KEY (application, name, member, uid)
) WITHOUT ROWID;
CREATE INDEX group_sessions_by_end ON group_sessions (expires);

CREATE TABLE origin (inode INTEGER NOT NULL);  -- of the file; a copy has another one
INSERT INTO origin VALUES (0);
"""


def prepare(connection: Connection, path: Path, *, has_log: bool) -> None:
    """Creates the tables in an empty file. Several processes may do so at once.

    ``has_log`` says whether the file had a write-ahead log before the connection was opened.

    Raises:
        StoreIncompatible: The file belongs to another program or to another version of this one, or lacks its log.
        StoreUnavailable: The file cannot be written.
    """
    try:
        connection.execute("BEGIN IMMEDIATE")
        try:
            empty = not connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchall()
            if empty and not _read_pragma(connection, "user_version"):
                connection.execute(CREATE_TABLES)
                connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                connection.execute(f"PRAGMA user_version = {FORMAT}")
            require_format(connection, path)
            require_log(connection, path, has_log=has_log)
            connection.execute("UPDATE origin SET inode = ?1 WHERE inode != ?1", (_inode_of(path),))
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:  # If the disk is full, SQLite has rolled back already.
                connection.execute("ROLLBACK")
            raise
    except DatabaseError as error:
        raise translate(error) from error


def require_log(connection: Connection, path: Path, *, has_log: bool) -> None:
    """Checks that a file which is not closed (see :func:`.connection.close_file`) has its log, or is not a copy.

    A file that was not copied may have lost its log without losing messages: SQLite's own shell removes the log that a
    killed process has left, once it has written it into the file.

    Raises:
        StoreIncompatible: The file is a copy without its log.
    """
    is_open = connection.execute("PRAGMA journal_mode").fetchall() == [("wal",)]
    if is_open and not has_log:
        [[inode]] = connection.execute("SELECT inode FROM origin").fetchall()
        if inode not in {0, _inode_of(path)}:
            raise make_copy_error(path)


def make_copy_error(path: Path) -> StoreIncompatible:
    text = f"{path} is a copy of a store in use, without its log (-wal), so its newest messages may be missing"
    hint = f"If you know that it is whole, run: sqlite3 {shlex.quote(str(path))} 'PRAGMA journal_mode = DELETE'"
    return StoreIncompatible(f"{text}. Copy a store in use with queuey backup. {hint}")


def _inode_of(path: Path) -> int:
    return path.stat().st_ino % (1 << 63)


def require_format(connection: Connection, path: Path) -> None:
    """Checks, without changing the file, that it has the present format.

    Raises:
        StoreIncompatible: The file belongs to another program or to another version of this one.
    """
    application, number = _read_pragma(connection, "application_id"), _read_pragma(connection, "user_version")
    if (application, number) == (APPLICATION_ID, FORMAT):
        return
    driver.keep_log(connection, path)
    if application != APPLICATION_ID:
        raise StoreIncompatible(f"{path} is a database of another program")
    text = f"{path} has format {number}; this version of queuey knows format {FORMAT}. Choose another --data"
    raise StoreIncompatible(text)


def _read_pragma(connection: Connection, name: str) -> int:
    row: Any = connection.execute(f"PRAGMA {name}").fetchone()
    number: int = row[0]
    return number


@contextmanager
def open_whole(path: Path, options: SqliteOptions) -> Iterator[Connection]:
    """Opens an existing file for a while, and leaves it closed if it was.

    Raises:
        StoreIncompatible: The file belongs to another program or to another version of this one, or lacks its log.
        StoreUnavailable: The file cannot be read.
    """
    has_log = driver.has_log(path)
    try:
        with closing(driver.connect(path, options, keep_mode=True)) as first:
            require_format(first, path)
            require_log(first, path, has_log=has_log)
        with closing(driver.connect(path, options)) as connection:
            yield connection
        driver.close_file(path)
    except DatabaseError as error:
        raise translate(error) from error


def check(path: Path) -> list[str]:
    """Returns the defects that SQLite's integrity check finds. Raises as :func:`open_whole`."""
    with open_whole(path, SqliteOptions()) as connection:
        return find_problems(connection)


def find_problems(connection: Connection) -> list[str]:
    rows = connection.execute("PRAGMA integrity_check").fetchall()
    return [str(row[0]) for row in rows if row[0] != "ok"]
