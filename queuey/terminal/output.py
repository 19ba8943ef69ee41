"""The forms in which commands print, and the options that choose them.

With ``--json`` standard output carries one JSON document, or one a line, and nothing else. Without it tables are
drawn on a terminal and written as aligned text elsewhere, so that no value is ever cut off in a pipe.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, TypeVar

import msgspec
import typer

from queuey.terminal import (
    INTERRUPTED,
    WRONG_USAGE,
    Failed,
    aligned,
    confirm,
    emit,
    fail,
    is_unread,
    note,
    plural,
    printable,
    say,
    write,
)

__all__ = [
    "INTERRUPTED",
    "WRONG_USAGE",
    "DryRun",
    "Failed",
    "Json",
    "Yes",
    "cell",
    "confirm",
    "emit",
    "fail",
    "is_unread",
    "listed",
    "note",
    "pairs",
    "plural",
    "printable",
    "say",
    "table",
    "write",
]

Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else on standard output.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
DryRun = Annotated[bool, typer.Option("--dry-run", "-n", help="Show what would be done, and change nothing.")]

T = TypeVar("T")

_NUMBER = re.compile(r"-?[0-9.,+]*")


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    cells = [[cell(value) for value in row] for row in rows]
    numeric = [bool(cells) and all(_NUMBER.fullmatch(row[index]) for row in cells) for index in range(len(columns))]
    if not sys.stdout.isatty():
        aligned([list(columns), *cells], numeric)
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


def listed(columns: Sequence[str], found: Iterable[T], row: Callable[[T], Sequence[Any]], *, json: bool) -> None:
    """Prints things: as a table, or with ``json`` one a line, each as soon as it is there."""
    if not json:
        table(columns, map(row, found))
        return
    for one in found:
        write(msgspec.json.encode(one) + b"\n", json=True)


def pairs(values: Iterable[tuple[str, Any]]) -> None:
    aligned([(name, cell(value)) for name, value in values], (False, False))


def cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list | tuple):
        return ", ".join(cell(item) for item in value)
    return printable(str(value))
