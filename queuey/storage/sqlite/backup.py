"""Backups of the embedded store: one file with a consistent snapshot of the store.

See ``docs/decisions/0029-backups.md`` for ``VACUUM INTO``, and for how a restore keeps services out.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from queuey.model import ids
from queuey.model.errors import StoreBusy, StoreFull, StoreIncompatible, StoreUnavailable
from queuey.storage.sqlite import connection as driver
from queuey.storage.sqlite import schema
from queuey.storage.sqlite.connection import Connection, DatabaseError, SqliteOptions, translate

ReportProgress = Callable[[str, int, int | None], None]
"""Reports progress: the name of the step, the bytes done, and the total bytes or None if they are not known."""

_STEPS_PER_REPORT = 1000
"""Interval between two progress reports, in virtual machine steps of SQLite; a message takes five."""
_CHUNK_BYTES = 1 << 20
_PARTIAL = ".queuey-partial"
"""Suffix of files that are being written. Other programs do not use it."""
_CHECKSUM = re.compile(rb"\\?([0-9a-f]{64}) [ *][^\n]+\n?")
"""A line as written by sha256sum."""
_MAX_CHECKSUM_BYTES = 1000


class Contents(msgspec.Struct, frozen=True):
    """Contents of a backup.

    Attributes:
        size: Size of the file in bytes.
        messages: Stored messages. Some may have expired and not been removed yet.
        newest: When the newest id was made (seconds since 1970), or a later moment up to which messages were read; None
            if no id was ever made.
        sha256: SHA-256 of the file, or None if the backup does not have a checksum file.
    """

    size: int
    applications: int
    keys: int
    queues: int
    messages: int
    newest: float | None
    sha256: str | None = None


def back_up(
    directory: Path, target: Path, options: SqliteOptions, tell: ReportProgress, *, replace: bool = False
) -> Contents:
    """Writes a snapshot of a store into one compact file. The store may be in use.

    The file appears under its name once it is complete, checked and on disk; then its checksum file appears. Both are
    readable only by this user. The backup has everything acknowledged before the call.

    Args:
        directory: Directory of the store.
        target: Path of the backup.
        options: Options of the store.
        tell: Called with the progress.
        replace: Replace ``target`` if it exists.

    Raises:
        StoreUnavailable: The store or the copy cannot be read or written.
        StoreIncompatible: The store has another format.
        FileExistsError: ``target`` exists, or the path of its checksum exists and is not a checksum.
        OSError: The file cannot be written.
    """
    source, checksum = driver.file_of(directory), checksum_file(target)
    driver.require_owner(source)
    if checksum.exists() and _read_checksum(checksum) is None:
        text = "File exists and is not a checksum. Move it away, or choose another name for the backup"
        raise FileExistsError(errno.EEXIST, text, str(checksum))
    with _partial_file(target) as partial:
        with schema.open_whole(source, options) as connection:
            try:
                _vacuum_into(connection, partial, tell)
            except DatabaseError as error:
                raise _copy_error(error, target) from error
        contents = examine(partial, tell)
        with partial.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        if not replace and target.exists():
            raise FileExistsError(errno.EEXIST, "File exists", str(target))
        # If this process dies here, the checksum is missing, which is better than a wrong one.
        checksum.unlink(missing_ok=True)
        _publish(partial, target, replace=replace)
    with _partial_file(checksum) as partial:
        partial.write_bytes(_make_checksum_line(sha256, target.name))
        _publish(partial, checksum, replace=True)
    return msgspec.structs.replace(contents, sha256=sha256)


def checksum_file(backup: Path) -> Path:
    return backup.with_name(f"{backup.name}.sha256")


def _read_checksum(path: Path) -> str | None:
    with path.open("rb") as file:
        match = _CHECKSUM.fullmatch(file.read(_MAX_CHECKSUM_BYTES))
    return None if match is None else match[1].decode()


def _make_checksum_line(sha256: str, name: str) -> bytes:
    escaped = name.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
    return os.fsencode(f"{'' if escaped == name else chr(92)}{sha256}  {escaped}\n")


def restore(
    backup: Path, directory: Path, options: SqliteOptions, tell: ReportProgress, *, replace: bool = False
) -> Contents:
    """Restores a backup as the store of a directory.

    The store appears, or replaces the present one, atomically: once it is complete, checked and on disk. Its next ids
    are above those of the store that it replaces.

    Args:
        backup: Path of the backup.
        directory: Directory of the store; it is created if it is missing.
        options: Options of the store.
        tell: Called with the progress.
        replace: Replace the present store if there is one; its messages are lost.

    Raises:
        StoreBusy: A process has the present store open.
        StoreUnavailable: The present store cannot be read. It was not changed.
        StoreIncompatible: The file is not a backup, or is damaged, or has another format, or does not match its
            checksum file.
        FileExistsError: A store exists and ``replace`` is false.
        OSError: A file cannot be read or written.
    """
    path = driver.file_of(directory)
    directory = path.parent
    log = backup.with_name(f"{backup.name}-wal")
    if log.exists() and log.stat().st_size:
        text = f"{backup} is not a backup but a store that was not closed: {log.name} exists. Back up that store"
        raise StoreIncompatible(f"{text}: queuey backup")
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.exists() and not replace:
        raise FileExistsError(errno.EEXIST, "a store exists already", str(path))
    driver.require_owner(path if path.exists() else directory)
    with _partial_file(path) as partial:
        sha256 = _verify_checksum(backup, _copy(backup, partial, tell))
        contents = msgspec.structs.replace(examine(partial, tell, name=backup), sha256=sha256)
        with _exclusive_lock(path, options) as present:
            if present is not None:
                _raise_clock(partial, options, present)
            _publish(partial, path, replace=present is not None)
    return contents


def examine(path: Path, tell: ReportProgress, *, name: Path | None = None) -> Contents:
    """Checks a whole backup and counts its contents. Errors mention ``name`` instead of ``path`` if it is given.

    Raises:
        StoreIncompatible: The file is not a backup, or is damaged, or has another format.
    """
    name = name or path
    tell("checking", 0, None)
    try:
        with path.open("rb") as file:
            if file.read(19)[18:] == b"\2":  # a file that asks for a write-ahead log
                raise schema.make_copy_error(name)
        connection = driver.open_copy(path)
        try:
            # Lets Python handle Ctrl-C while SQLite works.
            connection.set_progress_handler(lambda: False, _STEPS_PER_REPORT)
            schema.require_format(connection, name)
            if complaints := schema.find_problems(connection):
                text = f"{name} is damaged: {len(complaints)} defects, the first: {complaints[0]}. Use another backup."
                raise StoreIncompatible(text)
            return _count_contents(connection, path)
        finally:
            connection.close()
    except DatabaseError as error:
        raise StoreIncompatible(f"{name} is not a backup, or is damaged: {error}. Use another one.") from error


def _count_contents(connection: Connection, path: Path) -> Contents:
    tables = ("applications", "keys", "queues", "messages")
    row: Any = connection.execute(
        f"SELECT {', '.join(f'(SELECT count(*) FROM {table})' for table in tables)}, last_ticks FROM clock"  # noqa: S608 - constants only
    ).fetchone()
    applications, keys, queues, messages, last = row
    newest = ids.ticks_to_seconds(last) if last else None
    return Contents(path.stat().st_size, applications, keys, queues, messages, newest)


def _vacuum_into(connection: Connection, partial: Path, tell: ReportProgress) -> None:
    sizes: Any = connection.execute(
        "SELECT page_size * (page_count - freelist_count) FROM pragma_page_size, pragma_page_count, "
        "pragma_freelist_count"
    ).fetchone()

    def report() -> bool:
        tell("copying", partial.stat().st_size, sizes[0])
        return False

    connection.set_progress_handler(report, _STEPS_PER_REPORT)
    connection.execute("VACUUM INTO ?", (str(partial),)).fetchall()


def _verify_checksum(backup: Path, sha256: str) -> str | None:
    path = checksum_file(backup)
    if not path.exists():
        return None
    if (recorded := _read_checksum(path)) is None:
        text = f"{path} has no line of sha256sum. If you trust {backup.name} without its checksum, move that file away"
        raise StoreIncompatible(f"{text}, then repeat.")
    if recorded != sha256:
        text = f"{backup} is damaged or was changed: its SHA-256 is {sha256}, in {path.name} it is {recorded}"
        raise StoreIncompatible(f"{text}. Use another backup.")
    return sha256


def _copy(backup: Path, partial: Path, tell: ReportProgress) -> str:
    """Copies the backup and returns its SHA-256. The copy is checked later, so it cannot change in between."""
    digest = hashlib.sha256()
    with backup.open("rb") as source, partial.open("r+b") as file:
        size = os.fstat(source.fileno()).st_size
        while piece := source.read(_CHUNK_BYTES):
            file.write(piece)
            digest.update(piece)
            tell("copying", file.tell(), size)
    return digest.hexdigest()


def _copy_error(error: DatabaseError, target: Path) -> Exception:
    translated = translate(error)
    if isinstance(translated, StoreFull):  # only the copy is written
        return StoreFull(f"no space left for {target}: free some, or choose another disk", outcome="none")
    return translated


# A file that is being written


@contextmanager
def _partial_file(target: Path) -> Iterator[Path]:
    """Creates an empty file in the directory of ``target``. At the end it is removed unless it was published.

    Partial files of killed processes are removed from the directory. Running processes hold locks on their files.
    """
    for leftover in target.parent.glob(f".*{_PARTIAL}"):
        with suppress(OSError), leftover.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove_partial(leftover)
    descriptor, partial = _make_partial_file(target)
    try:
        yield partial
    finally:
        _remove_partial(partial)
        os.close(descriptor)


def _make_partial_file(target: Path) -> tuple[int, Path]:
    while True:
        descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=_PARTIAL, dir=target.parent)
        with suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.lexists(name):
                return descriptor, Path(name)
        os.close(descriptor)


def _remove_partial(partial: Path) -> None:
    for end in (*driver.SIDE_FILES, ""):
        partial.with_name(partial.name + end).unlink(missing_ok=True)


def _publish(partial: Path, target: Path, *, replace: bool) -> None:
    _fsync(partial)
    if replace:
        partial.replace(target)
    else:
        try:
            target.hardlink_to(partial)
        except FileExistsError:
            raise
        except OSError:  # a file system without links
            if target.exists():
                raise FileExistsError(errno.EEXIST, "File exists", str(target)) from None
            partial.rename(target)
    _fsync(target.parent)


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# The store that is replaced


class _Clock(NamedTuple):
    """Counters of the replaced store: the highest tick of an id, and the next queue number."""

    last_ticks: int
    next_queue_id: int


@contextmanager
def _exclusive_lock(path: Path, options: SqliteOptions) -> Iterator[_Clock | None]:
    """Locks a store so that no other process can open it. Yields its clock, or None if there is no store.

    First the store's log is merged into its file. A process that has opened the file and waits for the lock cannot
    write to it after it was replaced: to start a log again, SQLite must change the file itself, and refuses because the
    file has lost its name.

    Raises:
        StoreBusy: A process has the store open.
        StoreUnavailable: The store cannot be read.
    """
    if not path.exists():
        if remains := [path.name + end for end in driver.SIDE_FILES if path.with_name(path.name + end).exists()]:
            text = f"{path} is missing, but {', '.join(remains)} exists"
            raise StoreUnavailable(f"{text}: remains of a store. Move them to another place, then repeat.")
        yield None
        return
    connection = None
    try:
        connection = driver.connect(path, options, keep_mode=True)
        schema.require_format(connection, path)
        connection.execute("PRAGMA journal_mode = DELETE").fetchall()
        connection.execute("BEGIN EXCLUSIVE")
        row: Any = connection.execute("SELECT last_ticks, next_queue_id FROM clock").fetchone()
        mode: Any = connection.execute("PRAGMA journal_mode").fetchone()
        if mode[0] != "delete":
            raise StoreBusy(f"{path} was opened by another process between the two statements")
    except (DatabaseError, StoreUnavailable, StoreIncompatible) as error:
        if connection is not None:
            connection.close()
        raise _present_store_error(error, path) from error
    try:
        yield _Clock(*row)
    finally:
        connection.close()


def _present_store_error(error: Exception, path: Path) -> Exception:
    translated = translate(error) if isinstance(error, DatabaseError) else error
    if isinstance(translated, StoreBusy):
        return StoreBusy(f"{path} is in use. Stop the service and all other processes that have it open, then repeat.")
    text = f"The present store cannot be read: {translated}. Stop the service"
    return StoreUnavailable(f"{text}, move {path.name} and the files beside it to another place, then repeat.")


def _raise_clock(partial: Path, options: SqliteOptions, present: _Clock) -> None:
    """Raises the counters of the restored copy to at least the present store's, so that no id is made twice.

    Delayed ids up to the new clock are not ahead of it any more, so they are forgotten.
    """
    try:
        connection = driver.connect(partial, options)
        try:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute(
                "UPDATE clock SET last_ticks = max(last_ticks, ?), next_queue_id = max(next_queue_id, ?)", present
            )
            connection.execute("DELETE FROM delayed WHERE ticks <= (SELECT last_ticks FROM clock)")
            connection.execute("COMMIT")
            connection.execute("PRAGMA journal_mode = DELETE").fetchall()
        finally:
            connection.close()
    except DatabaseError as error:
        raise translate(error) from error
