"""What commands print: results on standard output, everything else on standard error.

With ``--json`` standard output carries one JSON document, or one a line, and nothing else. Without it tables are
drawn on a terminal and written as aligned text elsewhere, so that no value is ever cut off in a pipe.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import typer

Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else on standard output.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]

_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def note(text: str) -> None:
    """Says something that is not the result."""
    print(text, file=sys.stderr, flush=True)


def emit(value: object) -> None:
    """Prints one JSON document on a line."""
    import msgspec

    write(msgspec.json.encode(value) + b"\n")


def write(data: bytes) -> None:
    """Writes bytes to standard output at once, so that a reader of the pipe sees them as they come."""
    sys.stdout.flush()
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Prints a table. Cells are escaped, numbers stand to the right."""
    cells = [[cell(value) for value in row] for row in rows]
    numeric = [
        bool(cells) and all(re.fullmatch(r"-?[0-9.,]*", row[index]) for row in cells) for index in range(len(columns))
    ]
    if not sys.stdout.isatty():
        _plain([list(columns), *cells], numeric)
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name, right in zip(columns, numeric, strict=True):
        drawn.add_column(name, justify="right" if right else "left", overflow="fold")
    for row in cells:
        drawn.add_row(*(Text(value) for value in row))
    Console().print(drawn)


def pairs(values: Iterable[tuple[str, Any]]) -> None:
    """Prints named values, one a line."""
    lines = [(name, cell(value)) for name, value in values]
    width = max((len(name) for name, _ in lines), default=0)
    for name, value in lines:
        print(f"{name:<{width}}  {value}".rstrip())


def cell(value: object) -> str:
    """Returns a value as one line of printable text."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list | tuple):
        return ", ".join(cell(item) for item in value)
    return printable(str(value))


def printable(text: str) -> str:
    """Replaces control characters by escapes: a message must not be able to steer the reader's terminal."""
    return _UNPRINTABLE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


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
    if not typer.confirm(question, err=True):
        note("Nothing was changed.")
        raise typer.Exit(1)


def close_quietly() -> None:
    """Flushes standard output; a reader that has gone away is no error."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _plain(rows: list[list[str]], numeric: list[bool]) -> None:
    widths = [max(len(row[index]) for row in rows) for index in range(len(numeric))]
    for row in rows:
        parts = (
            value.rjust(width) if right else value.ljust(width)
            for value, width, right in zip(row, widths, numeric, strict=True)
        )
        print("  ".join(parts).rstrip())
