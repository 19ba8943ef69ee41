"""The forms in which commands print: JSON, tables and named values.

With ``--json`` standard output carries one JSON document, or one a line, and nothing else. Without it tables are
drawn on a terminal and written as aligned text elsewhere, so that no value is ever cut off in a pipe.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import typer

from queuey.terminal import INTERRUPTED, aligned, confirm, emit, note, plural, printable, say, write

__all__ = [
    "INTERRUPTED",
    "Json",
    "Yes",
    "cell",
    "confirm",
    "emit",
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


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Prints a table. Cells are escaped, numbers stand to the right."""
    cells = [[cell(value) for value in row] for row in rows]
    numeric = [
        bool(cells) and all(re.fullmatch(r"-?[0-9.,]*", row[index]) for row in cells) for index in range(len(columns))
    ]
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


def pairs(values: Iterable[tuple[str, Any]]) -> None:
    """Prints named values, one a line."""
    aligned([(name, cell(value)) for name, value in values], (False, False))


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
