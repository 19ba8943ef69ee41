"""Backups of the embedded store: one file with all that the store held at one moment.

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

from queuey import ids
from queuey.errors import StoreBusy, StoreFull, StoreIncompatible, StoreUnavailable
from queuey.storage.sqlite import connection as driver
from queuey.storage.sqlite import schema
from queuey.storage.sqlite.connection import Connection, DatabaseError, SqliteOptions, translate

Tell = Callable[[str, int, int | None], None]
"""Called now and then with a step, the bytes done, and all bytes (None: not known)."""

_SIDE_FILES = ("-wal", "-shm", "-journal")
"""Suffixes of the files that SQLite puts beside a database."""
_STEPS = 1000
"""Interval in steps of SQLite between two reports; a message takes five."""
_PIECE = 1 << 20
_PARTIAL = ".queuey-partial"
"""Suffix of a file that is being written. No other program's files end like that."""
_CHECKSUM = re.compile(rb"\\?([0-9a-f]{64}) [ *][^\n]+\n?")
"""A line of sha256sum."""
_LONGEST_LINE = 1000


class Contents(msgspec.Struct, frozen=True):
    """Counts of a backup.

    Attributes:
        size: Bytes of its file.
        messages: Stored ones; some may have expired and not been removed yet.
        newest: When the newest id was made (seconds since 1970), or a later moment up to which messages were read;
            None: none was made.
        sha256: Of the file, from the checksum beside it; None: there is none.
    """

    size: int
    applications: int
    keys: int
    queues: int
    messages: int
    newest: float | None
    sha256: str | None = None


def back_up(directory: Path, target: Path, options: SqliteOptions, tell: Tell, *, replace: bool = False) -> Contents:
    """Writes all that a store holds now into one compact file. The store may be in use.

    The file appears under its name when it is complete, checked and on the disk, and then its checksum beside it. Both
    are readable by this user alone. All that was acknowledged before the call is in it.

    Args:
        directory: Of the store.
        target: The file.
        options: Of the store.
        tell: Called with the progress.
        replace: ``target`` may exist.

    Raises:
        StoreUnavailable: The store or the copy cannot be read or written.
        StoreIncompatible: The store is one of a newer format.
        FileExistsError: ``target`` exists, or another thing has the name of its checksum.
        OSError: The file cannot be written.
    """
    source, checksum = driver.file_of(directory), checksum_file(target)
    _require_owner(source)
    if checksum.exists() and _read_checksum(checksum) is None:
        text = "File exists and has no checksum. Move it away, or name another backup"
        raise FileExistsError(errno.EEXIST, text, str(checksum))
    with _partial(target) as partial:
        connection = driver.connect(source, options)
        try:
            schema.require_format(connection, source)
            _vacuum_into(connection, partial, tell)
        except DatabaseError as error:
            raise _of_copying(error, target) from error
        finally:
            connection.close()
        contents = examine(partial, tell)
        with partial.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        if not replace and target.exists():
            raise FileExistsError(errno.EEXIST, "File exists", str(target))
        # If this process dies here, there is no checksum, rather than one of another file.
        checksum.unlink(missing_ok=True)
        _publish(partial, target, replace=replace)
    with _partial(checksum) as partial:
        partial.write_bytes(_line(sha256, target.name))
        _publish(partial, checksum, replace=True)
    return msgspec.structs.replace(contents, sha256=sha256)


def checksum_file(backup: Path) -> Path:
    """Returns the path of a backup's checksum, which ``sha256sum -c`` reads as well."""
    return backup.with_name(f"{backup.name}.sha256")


def _read_checksum(path: Path) -> str | None:
    with path.open("rb") as file:
        found = _CHECKSUM.fullmatch(file.read(_LONGEST_LINE))
    return None if found is None else found[1].decode()


def _line(sha256: str, name: str) -> bytes:
    escaped = name.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
    return os.fsencode(f"{'' if escaped == name else chr(92)}{sha256}  {escaped}\n")


def restore(backup: Path, directory: Path, options: SqliteOptions, tell: Tell, *, replace: bool = False) -> Contents:
    """Makes a backup the store of a directory.

    The store appears, or takes the place of the one before, in one step: when it is complete, checked and on the disk.
    Its next ids lie above those of the store that it replaces.

    Args:
        backup: The file.
        directory: Of the store; it is made if it is missing.
        options: Of the store.
        tell: Called with the progress.
        replace: There may be a store already, which is lost.

    Raises:
        StoreBusy: A process has the present store open.
        StoreUnavailable: The present store cannot be read; it was left as it is.
        StoreIncompatible: The file is no backup, or damaged, or of a newer format, or has not the checksum beside it.
        FileExistsError: There is a store already.
        OSError: A file cannot be read or written.
    """
    path = driver.file_of(directory)
    directory = path.parent
    log = backup.with_name(f"{backup.name}-wal")
    if log.exists() and log.stat().st_size:
        text = f"{backup} is no backup but a store that was not closed: {log.name} lies beside it. Back that store up"
        raise StoreIncompatible(f"{text}: queuey backup")
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.exists() and not replace:
        raise FileExistsError(errno.EEXIST, "there is a store already", str(path))
    _require_owner(path if path.exists() else directory)
    with _partial(path) as partial:
        sha256 = _compared(backup, _copy(backup, partial, tell))
        contents = msgspec.structs.replace(examine(partial, tell, name=backup), sha256=sha256)
        with _kept_out(path, options) as present:
            if present is not None:
                _carry_over(partial, options, present)
            _publish(partial, path, replace=present is not None)
    return contents


def examine(path: Path, tell: Tell, *, name: Path | None = None) -> Contents:
    """Checks a backup as a whole, and counts its messages; ``name`` is for errors.

    Raises:
        StoreIncompatible: It is no backup, or damaged, or of a newer format.
    """
    name = name or path
    tell("checking", 0, None)
    try:
        connection = driver.open_copy(path)
        try:
            # Gives Python the chance to notice Ctrl-C while SQLite works.
            connection.set_progress_handler(lambda: False, _STEPS)
            schema.require_format(connection, name)
            if complaints := schema.complaints(connection):
                text = f"{name} is damaged: {len(complaints)} defects, the first: {complaints[0]}. Use another backup."
                raise StoreIncompatible(text)
            return _count(connection, path)
        finally:
            connection.close()
    except DatabaseError as error:
        raise StoreIncompatible(f"{name} is no backup, or is damaged: {error}. Use another one.") from error


def _count(connection: Connection, path: Path) -> Contents:
    tables = ("applications", "keys", "queues", "messages")
    row: Any = connection.execute(
        f"SELECT {', '.join(f'(SELECT count(*) FROM {table})' for table in tables)}, last_ticks FROM clock"  # noqa: S608 - constants only
    ).fetchone()
    applications, keys, queues, messages, last = row
    newest = ids.ticks_to_seconds(last) if last else None
    return Contents(path.stat().st_size, applications, keys, queues, messages, newest)


def _vacuum_into(connection: Connection, partial: Path, tell: Tell) -> None:
    sizes: Any = connection.execute(
        "SELECT page_size * (page_count - freelist_count) FROM pragma_page_size, pragma_page_count, "
        "pragma_freelist_count"
    ).fetchone()

    def look() -> bool:
        tell("copying", partial.stat().st_size, sizes[0])
        return False

    connection.set_progress_handler(look, _STEPS)
    connection.execute("VACUUM INTO ?", (str(partial),)).fetchall()


def _compared(backup: Path, sha256: str) -> str | None:
    """Returns the checksum beside a backup, None if there is none, and refuses another one (``StoreIncompatible``)."""
    path = checksum_file(backup)
    if not path.exists():
        return None
    if (found := _read_checksum(path)) is None:
        text = f"{path} has no line of sha256sum. If you trust {backup.name} without its checksum, move that file away"
        raise StoreIncompatible(f"{text}, then repeat.")
    if found != sha256:
        text = f"{backup} is damaged or was changed: its SHA-256 is {sha256}, in {path.name} it is {found}"
        raise StoreIncompatible(f"{text}. Use another backup.")
    return sha256


def _copy(backup: Path, partial: Path, tell: Tell) -> str:
    """Copies the backup, and returns its SHA-256; the copy is checked then."""
    digest = hashlib.sha256()
    with backup.open("rb") as source, partial.open("r+b") as file:
        size = os.fstat(source.fileno()).st_size
        while piece := source.read(_PIECE):
            file.write(piece)
            digest.update(piece)
            tell("copying", file.tell(), size)
    return digest.hexdigest()


def _of_copying(error: DatabaseError, target: Path) -> Exception:
    found = translate(error)
    if isinstance(found, StoreFull):  # nothing is written but the copy
        return StoreFull(f"no space left for {target}: free some, or choose another disk", outcome="none")
    return found


def _require_owner(path: Path) -> None:
    """Refuses a store of another user: no file may be left that the service cannot write."""
    if path.stat().st_uid != os.geteuid():
        raise StoreUnavailable(f"{path} is another user's. Run this as the user that the service runs as.")


# A file that is being written


@contextmanager
def _partial(target: Path) -> Iterator[Path]:
    """Makes an empty file beside ``target``, which is removed at the end unless it was published.

    Files that killed processes have left there are removed, whatever their targets; living processes hold a lock on
    theirs.
    """
    for left in target.parent.glob(f".*{_PARTIAL}"):
        with suppress(OSError), left.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(left)
    number, partial = _made(target)
    try:
        yield partial
    finally:
        _remove(partial)
        os.close(number)


def _made(target: Path) -> tuple[int, Path]:
    """Makes a file and locks it; again if another process took it for an abandoned one."""
    while True:
        number, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=_PARTIAL, dir=target.parent)
        with suppress(BlockingIOError):
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.lexists(name):
                return number, Path(name)
        os.close(number)


def _remove(partial: Path) -> None:
    for end in (*_SIDE_FILES, ""):
        partial.with_name(partial.name + end).unlink(missing_ok=True)


def _publish(partial: Path, target: Path, *, replace: bool) -> None:
    """Gives a file its name, for good.

    Raises:
        FileExistsError: The name is taken, and must not be replaced.
    """
    _sync(partial)
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
    _sync(target.parent)


def _sync(path: Path) -> None:
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


# The store that is replaced


class _Clock(NamedTuple):
    """Progress of the replaced store: the highest tick of an id, and the next number of a queue."""

    last_ticks: int
    next_queue_id: int


@contextmanager
def _kept_out(path: Path, options: SqliteOptions) -> Iterator[_Clock | None]:
    """Locks a store so that no process opens it meanwhile; yields its clock, None if there is no store.

    The store's log is copied into its file first, so that the file is all there is. A process that has opened the file
    and waits for it cannot go on in it after it was replaced: to write a log again, SQLite has to change the file
    itself, and refuses because the file has lost its name.

    Raises:
        StoreBusy: A process has it open.
        StoreUnavailable: It cannot be read.
    """
    if not path.exists():
        if remains := [path.name + end for end in _SIDE_FILES if path.with_name(path.name + end).exists()]:
            text = f"{path} is not there, but {', '.join(remains)} is"
            raise StoreUnavailable(f"{text}: remains of a store. Move them to another place, then repeat.")
        yield None
        return
    connection = None
    try:
        connection = driver.connect(path, options)
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
        raise _of_present(error, path) from error
    try:
        yield _Clock(*row)
    finally:
        connection.close()


def _of_present(error: Exception, path: Path) -> Exception:
    found = translate(error) if isinstance(error, DatabaseError) else error
    if isinstance(found, StoreBusy):
        return StoreBusy(f"{path} is in use. Stop the service and all that has it open, then repeat.")
    text = f"The present store cannot be read: {found}. Stop the service"
    return StoreUnavailable(f"{text}, move {path.name} and the files beside it to another place, then repeat.")


def _carry_over(partial: Path, options: SqliteOptions, present: _Clock) -> None:
    """Makes the ids of a restored store go on above those of the one that it replaces."""
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
