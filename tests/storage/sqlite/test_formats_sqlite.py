"""Files that the embedded store refuses: of other versions, of other programs, and those that are not databases."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import apsw
import pytest

from queuey.client import ServiceUnavailable
from queuey.model.errors import StoreIncompatible, StoreUnavailable
from queuey.storage.sqlite import backup, check, open_store, schema
from queuey.storage.sqlite import connection as driver
from queuey.storage.sqlite.connection import FILE
from tests.storage.sqlite.test_backup_sqlite import data, ignore_progress
from tests.storage.sqlite.test_copies_sqlite import OPENINGS, OPTIONS, Opening

__all__ = ["data"]


def restore_over(directory: Path, tmp_path: Path) -> None:
    backup.restore(tmp_path / "backup", directory, OPTIONS, ignore_progress, replace=True)


ALL_OPENINGS: dict[str, Opening] = {
    **OPENINGS,
    "a check of it": lambda directory, _: check(directory / FILE),
    "a restore over it": restore_over,
}


@pytest.mark.parametrize("what", ALL_OPENINGS)
@pytest.mark.parametrize(
    ("application", "number", "reason", "has_log"),
    [
        (schema.APPLICATION_ID, schema.FORMAT - 1, f"has format {schema.FORMAT - 1}.*Choose another --data", False),
        (schema.APPLICATION_ID, schema.FORMAT + 1, f"has format {schema.FORMAT + 1}.*Choose another --data", True),
        (0x12345678, schema.FORMAT, "is a database of another program", False),
    ],
    ids=["lower", "newer", "another program"],
)
def test_of_another_kind(
    data: Path, tmp_path: Path, application: int, number: int, reason: str, what: str, *, has_log: bool
) -> None:
    """A file of another kind or number is refused by whatever opens it, and neither it nor its log changes."""
    backup.back_up(data, tmp_path / "backup", OPTIONS, ignore_progress)
    with closing(apsw.Connection(str(data / FILE))) as connection:
        connection.execute(f"PRAGMA journal_mode = {'WAL' if has_log else 'DELETE'}")
        connection.execute(f"PRAGMA application_id = {application}; PRAGMA user_version = {number}")
        driver.keep_log(connection, data / FILE)
    before = {path: path.read_bytes() for path in data.iterdir() if not path.name.endswith("-shm")}
    assert len(before) == 1 + has_log
    if has_log and what == "a restore of it":
        reason = "is not a backup but a store that was not closed"
    with pytest.raises((StoreIncompatible, StoreUnavailable, ServiceUnavailable), match=f"{data / FILE}.*{reason}"):
        ALL_OPENINGS[what](data, tmp_path)
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.parametrize("content", [b"hello", b"x" * 5000, b"\0" * 8192], ids=["short", "text", "zeros"])
def test_no_database(tmp_path: Path, content: bytes) -> None:
    """A file that is not a database is refused and not changed."""
    (tmp_path / FILE).write_bytes(content)
    with pytest.raises((StoreIncompatible, StoreUnavailable)):
        open_store(tmp_path)
    assert (tmp_path / FILE).read_bytes() == content
