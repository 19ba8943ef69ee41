"""The forms in which commands print. With ``--json`` standard output has JSON, a document a line, and nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Annotated

import typer

from queuey.client import EARLIEST, time_of
from queuey.terminal import aligned, confirm, emit, note, printable, say

__all__ = ["DryRun", "Json", "Yes", "confirm", "emit", "instant", "note", "point", "printable", "say", "table"]

Json = Annotated[bool, typer.Option("--json", help="Print JSON, one document a line.")]
DryRun = Annotated[bool, typer.Option("--dry-run", "-n", help="Say what would be done, and do nothing.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]

_NUMBER = re.compile(r"-?[0-9.,+]*")


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Prints aligned columns; those of numbers stand to the right."""
    cells = [[_cell(value) for value in row] for row in rows]
    right = [bool(cells) and all(_NUMBER.fullmatch(row[index]) for row in cells) for index in range(len(columns))]
    aligned([list(columns), *cells], right)


def instant(seconds: float) -> str:
    """Returns an instant, seconds since 1970, in UTC; nothing for 0."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(" ", "seconds").replace("+00:00", "Z") if seconds else ""


def point(identifier: str | None) -> str:
    """Returns an id with its time."""
    if identifier is None:
        return "none"
    if identifier == EARLIEST:
        return "earliest"
    return f"{identifier} ({time_of(identifier).isoformat(' ', 'milliseconds').replace('+00:00', 'Z')})"


def _cell(value: object) -> str:
    return "" if value is None else printable(str(value))
