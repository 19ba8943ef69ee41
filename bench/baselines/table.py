"""The SQLite baselines' table: the same shape and the same mode as the service's."""

from __future__ import annotations

from pathlib import Path

import apsw

TABLE = """
CREATE TABLE IF NOT EXISTS messages (
    queue_partition INTEGER NOT NULL, ticks INTEGER NOT NULL, low INTEGER NOT NULL, expires INTEGER NOT NULL,
    body NOT NULL, meta BLOB, PRIMARY KEY (queue_partition, ticks, low)
) WITHOUT ROWID
"""
INSERT = "INSERT INTO messages (queue_partition, ticks, low, expires, body, meta) VALUES "
TTL_TICKS = 259_200 * 10_000_000
QP = 1 << 8 | 1
CHECKPOINT_PAGES = 1000
"""SQLite's default, and the fastest: a log that restarts early reuses the blocks that the file already has."""


def connect(path: Path) -> apsw.Connection:
    """Opens a file in synchronous=FULL mode and creates the table if necessary."""
    connection = apsw.Connection(str(path), statementcachesize=20)
    connection.set_busy_timeout(10_000)
    connection.execute("PRAGMA journal_mode = WAL").fetchall()
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}").fetchall()
    connection.execute("PRAGMA cache_size = -16384")
    connection.execute(TABLE)
    return connection
