"""The numbered files under ``cql/``: finds them, splits them into statements, and recognises them again."""

from __future__ import annotations

import hashlib
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

_NAME = re.compile(r"([0-9]{3})_([a-z0-9_]+)\.cql")
_TOKEN = re.compile(
    r"""
      (?P<comment> --[^\n]* | //[^\n]* | /\*.*?\*/ )
    | (?P<quoted> '(?:[^']|'')*' | "(?:[^"]|"")*" | \$\$.*?\$\$ )
    | (?P<end> ; )
    | (?P<other> . )
    """,
    re.VERBOSE | re.DOTALL,
)


class SchemaMigration(NamedTuple):
    """A numbered file.

    Attributes:
        number: Position in the order.
        name: File name without ``.cql``, such as ``001_catalogue``.
        checksum: SHA-256 of the text, in hex.
        statements: Statements without comments. Each may be run again.
    """

    number: int
    name: str
    checksum: str
    statements: tuple[str, ...]


def split_statements(text: str) -> list[str]:
    """Splits a text at semicolons outside quotes; drops comments and empty statements."""
    statements, current = [], ""
    for token in _TOKEN.finditer(text):
        if token["end"]:
            statements.append(current)
            current = ""
        else:
            current += " " if token["comment"] else token[0]
    return [statement.strip() for statement in (*statements, current) if statement.strip()]


def parse(file_name: str, text: str) -> SchemaMigration:
    """Returns the migration in a file. Raises ValueError unless the file is named like ``NNN_what.cql``."""
    match = _NAME.fullmatch(file_name)
    if match is None:
        raise ValueError(f"{file_name!r} is not a valid file name: use NNN_what.cql")
    checksum = hashlib.sha256(text.encode()).hexdigest()
    return SchemaMigration(int(match[1]), file_name.removesuffix(".cql"), checksum, tuple(split_statements(text)))


def find_directory() -> Path:
    """Returns the directory of the files: beside this module once installed, at the top level of a checkout."""
    installed = Path(__file__).parents[1] / "cql"
    return installed if installed.is_dir() else Path(__file__).parents[4] / "cql"


@cache
def read_known_migrations() -> tuple[SchemaMigration, ...]:
    files = sorted(find_directory().glob("*.cql"))
    return tuple(parse(path.name, path.read_text(encoding="utf-8")) for path in files)
