"""Tables of local coordination, and whose file it is."""

from __future__ import annotations

APPLICATION_ID = 0x51646F43
"""``QdoC``: tells our files from other SQLite databases."""
FORMAT = 2

ADDED = {
    "held": "INTEGER NOT NULL DEFAULT 0",  # the owner before has lost it, and did not release it
    "note": "BLOB",  # what an owner had begun of it, as JSON
}
"""Columns of ``partitions`` that files from before have not; programs from before pass over them."""

TABLES = """
CREATE TABLE groups (
    id INTEGER PRIMARY KEY AUTOINCREMENT,  -- never used again after the group was forgotten
    name TEXT NOT NULL UNIQUE,
    members INTEGER NOT NULL DEFAULT 0,    -- goes up when a member comes, goes, or tells something else
    freed INTEGER NOT NULL DEFAULT 0,      -- goes up when partitions lose their owner
    version INTEGER NOT NULL DEFAULT -1,   -- of the target
    target BLOB
);

CREATE TABLE sessions (
    id INTEGER PRIMARY KEY,     -- random: no other file that takes the place of this one has it
    group_id INTEGER NOT NULL,
    member TEXT NOT NULL,
    member_data BLOB NOT NULL,  -- the member, encoded
    process TEXT NOT NULL,      -- the coordinator, by the name of its bell
    timeout REAL NOT NULL,      -- seconds
    expires REAL NOT NULL,      -- seconds since the machine was started
    UNIQUE (group_id, member)
);
CREATE INDEX sessions_by_process ON sessions (process);

CREATE TABLE partitions (
    group_id INTEGER NOT NULL,
    queue TEXT NOT NULL,       -- service/application/name, quoted
    number INTEGER NOT NULL,
    owner_session INTEGER,     -- of the owner
    version INTEGER NOT NULL,  -- goes up with each taking and each commit
    offset TEXT,
    updated_at REAL NOT NULL DEFAULT 0,
    member TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (group_id, queue, number)
) WITHOUT ROWID;
CREATE INDEX partitions_by_session ON partitions (owner_session) WHERE owner_session IS NOT NULL;
"""
