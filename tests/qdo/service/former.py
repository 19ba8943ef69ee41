"""Group files of 0.1.0, as a test needs them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path

import apsw

from qdo.coordination.paths import GroupPaths
from qdo.coordination.records import CommittedOffset, encode_offset
from qdo.keepalive.vitals import now
from qdo.partitions import Partition
from tests.releases.recording import HERE, unpack

SESSION_SECONDS = 600.0
"""Session timeout of a member in seconds."""


def write_former(path: Path, group: str, offsets: Mapping[Partition, str], living: Iterable[str] = ()) -> None:
    """Writes offsets, and living members with sessions, into a file of version 0.1.0; creates it if it is missing."""
    if not path.exists():
        unpack(HERE / "v0_1_0" / "groups.gz", path)
    paths = GroupPaths("", group)
    with closing(apsw.Connection(str(path))) as connection:
        for partition, identifier in offsets.items():
            _add(connection, paths.offset(partition), encode_offset(CommittedOffset(identifier)))
        for number, member in enumerate(living, 1):
            connection.execute("INSERT INTO sessions VALUES (?, ?, 10.0, ?)", (number, group, now() + SESSION_SECONDS))
            _add(connection, paths.member(member), b"{}", number)


def end_sessions(path: Path) -> None:
    with closing(apsw.Connection(str(path))) as connection:
        connection.execute("UPDATE sessions SET expires = 0")


def _add(connection: apsw.Connection, path: str, data: bytes, session: int | None = None) -> None:
    parent, _, name = path.rpartition("/")
    connection.execute("INSERT OR IGNORE INTO parents (path) VALUES (?)", (parent,))
    [(number,)] = connection.execute("SELECT id FROM parents WHERE path = ?", (parent,))
    connection.execute("INSERT OR REPLACE INTO nodes VALUES (?, ?, ?, 0, 0, 0, ?)", (number, name, data, session))
