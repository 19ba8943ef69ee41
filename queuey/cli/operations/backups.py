"""``queuey backup`` and ``queuey restore``: a SQLite store in one file, and back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from queuey import time_parsing
from queuey.cli.operations.store_options import ConfiguredStore, on_store
from queuey.terminal import output
from queuey.terminal.bars import bar
from queuey.terminal.output import Yes
from queuey.terminal.texts import plural

if TYPE_CHECKING:
    from queuey.storage.sqlite.backup import Contents, Tell

_MIB = 1 << 20
_TO_CASSANDRA = (
    "is for SQLite stores. A Cassandra store is backed up on each node by nodetool: "
    "docs/operations-cassandra.md, section Backup and restore. "
    "queuey pipeline archive and replay copy the messages of queues, whatever the store."
)


@on_store
def backup(
    store_at: ConfiguredStore,
    file: Annotated[Path, typer.Argument(help="The file to write, if possible on another disk.", show_default=False)],
    yes: Yes = False,
) -> None:
    """Copy a whole SQLite store into one file, while the service runs.

    The file appears when it is complete and checked, with its checksum beside it: FILE.sha256. It has all that was
    acknowledged before the command began.
    """
    from queuey.storage import opening
    from queuey.storage.sqlite.backup import back_up

    settings = store_at.settings
    _require_sqlite(store_at, "queuey backup")
    if not opening.is_made(settings):
        raise output.Failed(f"there is no store at {settings.data}; name its directory by --data")
    if file.is_dir() or not file.absolute().parent.is_dir() or (file.exists() and not file.is_file()):
        raise typer.BadParameter(f"{str(file)!r} is not a file in a directory that is there", param_hint="FILE")
    if _is_of_store(file, settings.data):
        raise typer.BadParameter(f"{str(file)!r} is the store itself; name another file", param_hint="FILE")
    replace = file.exists()
    if replace:
        output.confirm(f"Replace {file}?", yes=yes)
    with _progress() as tell:
        contents = back_up(settings.data, file, opening.sqlite_options(settings, jobs=False), tell, replace=replace)
    _show(contents, {"backup": str(file), "store": str(settings.data)}, f"{file} is a backup")


@on_store
def restore(
    store_at: ConfiguredStore,
    file: Annotated[Path, typer.Argument(help="The backup.", show_default=False)],
    yes: Yes = False,
) -> None:
    """Make a backup the SQLite store of --data. The service must be stopped.

    All changes after the backup are lost. The store before it, if there is one, is replaced. If FILE.sha256 is there,
    the backup must have that checksum.
    """
    from queuey.storage import opening
    from queuey.storage.sqlite import backup as backups

    settings = store_at.settings
    _require_sqlite(store_at, "queuey restore")
    if not file.is_file():
        raise typer.BadParameter(f"there is no file {str(file)!r}", param_hint="FILE")
    if _is_of_store(file, settings.data):
        raise typer.BadParameter(f"{str(file)!r} is the store itself; name a backup", param_hint="FILE")
    replace = opening.is_made(settings)
    if replace:
        output.confirm(f"Replace the store at {settings.data} with all it has?", yes=yes)
    options = opening.sqlite_options(settings, jobs=False)
    with _progress() as tell:
        contents = backups.restore(file, settings.data, options, tell, replace=replace)
    about = {"backup": str(file), "store": str(settings.data), "replaced": replace}
    _show(contents, about, f"The store at {settings.data} is that of {file}")
    output.note(
        "What came after the backup is gone. Revoke again the keys that were revoked since. Workers that claimed "
        "messages before have to be started again."
    )


def _require_sqlite(store_at: ConfiguredStore, command: str) -> None:
    from queuey.storage import opening

    if opening.is_cassandra(store_at.settings):
        raise output.Failed(f"{command} {_TO_CASSANDRA}", output.WRONG_USAGE)


def _is_of_store(file: Path, data: Path) -> bool:
    """Returns whether a file is the store's or one that SQLite keeps beside it."""
    from queuey.storage.sqlite.connection import FILE

    found = file.resolve()
    return found.parent == data.resolve() and found.name.startswith(FILE)


@contextmanager
def _progress() -> Iterator[Tell]:
    with bar() as move:

        def tell(text: str, done: int, total: int | None) -> None:
            move(f"{text} (MiB)", done // _MIB, None if total is None else -(-total // _MIB))

        yield tell


def _show(contents: Contents, about: dict[str, Any], text: str) -> None:
    counts = [
        plural(contents.applications, "application"),
        plural(contents.keys, "key"),
        plural(contents.queues, "queue"),
        plural(contents.messages, "message"),
    ]
    until = "" if contents.newest is None else f", up to {time_parsing.iso(contents.newest)}"
    checked = "checked" if contents.sha256 else "checked, but no checksum is beside it"
    text += f": {', '.join(counts)}{until}; {contents.size / _MIB:,.1f} MiB, {checked}."
    output.show(about | msgspec.to_builtins(contents), text)
