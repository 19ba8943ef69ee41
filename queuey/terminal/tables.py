"""Tables: drawn on a terminal, and aligned text elsewhere, so that no value is ever cut off in a pipe."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from queuey.terminal import aligned, printable

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
