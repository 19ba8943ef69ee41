"""The forms in which commands print: JSON, tables and named values.

With ``--json`` standard output carries one JSON document, or one a line, and nothing else. Without it tables are
drawn on a terminal and written as aligned text elsewhere, so that no value is ever cut off in a pipe.
"""

from __future__ import annotations

from typing import Annotated

import typer

from queuey.terminal import INTERRUPTED, confirm, emit, fail, note, plural, printable, say, write
from queuey.terminal.tables import cell, pairs, table

__all__ = [
    "INTERRUPTED",
    "Json",
    "Yes",
    "cell",
    "confirm",
    "emit",
    "fail",
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
