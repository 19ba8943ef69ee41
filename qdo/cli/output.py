"""What commands print: results on standard output, notes and questions on standard error.

With ``--json`` standard output carries JSON documents, one a line, and nothing else. Whatever others wrote (names,
bodies, errors) is escaped first, so that it cannot steer the reader's terminal.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Annotated

import msgspec
import typer

from queuey.client import EARLIEST, time_of

Json = Annotated[bool, typer.Option("--json", help="Print JSON, one document a line.")]
DryRun = Annotated[bool, typer.Option("--dry-run", "-n", help="Say what would be done, and do nothing.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]

_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_NUMBER = re.compile(r"-?[0-9.,+]*")


def printable(text: str) -> str:
    """Replaces control characters by escapes."""
    return _UNPRINTABLE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def say(text: str) -> None:
    """Prints a line of the result."""
    print(printable(text), flush=True)


def note(text: str) -> None:
    """Says something that is not the result."""
    print(printable(text), file=sys.stderr, flush=True)


def emit(value: object) -> None:
    """Prints one JSON document on a line."""
    sys.stdout.write(msgspec.json.encode(value).decode() + "\n")
    sys.stdout.flush()


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Prints aligned columns; those of numbers stand to the right."""
    cells = [[_cell(value) for value in row] for row in rows]
    right = [bool(cells) and all(_NUMBER.fullmatch(row[index]) for row in cells) for index in range(len(columns))]
    lines = [list(columns), *cells]
    widths = [max(len(line[index]) for line in lines) for index in range(len(columns))]
    for line in lines:
        parts = (
            text.rjust(width) if to_right else text.ljust(width)
            for text, width, to_right in zip(line, widths, right, strict=True)
        )
        print("  ".join(parts).rstrip())
    sys.stdout.flush()


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


def confirm(question: str, *, yes: bool) -> None:
    """Asks before something that cannot be undone.

    Raises:
        typer.Exit: The answer is no (code 1), or there is nobody to ask (2).
    """
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        note(f"{question} Nobody is there to ask: repeat with --yes.")
        raise typer.Exit(2)
    if not typer.confirm(printable(question), err=True):
        note("Nothing was changed.")
        raise typer.Exit(1)


def _cell(value: object) -> str:
    return "" if value is None else printable(str(value))
