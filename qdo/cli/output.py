"""The forms in which commands print. With ``--json`` standard output has JSON, a document a line, and nothing else."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from queuey.client import EARLIEST, time_of
from queuey.terminal import confirm, emit, note, printable, say
from queuey.terminal.tables import table

__all__ = ["DryRun", "Json", "Yes", "confirm", "emit", "instant", "note", "point", "printable", "say", "table"]

Json = Annotated[bool, typer.Option("--json", help="Print JSON, one document a line.")]
DryRun = Annotated[bool, typer.Option("--dry-run", "-n", help="Show what would be done, and do nothing.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def instant(seconds: float) -> str:
    """Returns an instant, seconds since 1970, in UTC; an empty text for 0."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(" ", "seconds").replace("+00:00", "Z") if seconds else ""


def point(identifier: str | None) -> str:
    """Returns an id with its time."""
    if identifier is None:
        return "none"
    if identifier == EARLIEST:
        return "earliest"
    return f"{identifier} ({time_of(identifier).isoformat(' ', 'milliseconds').replace('+00:00', 'Z')})"
