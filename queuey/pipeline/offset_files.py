"""Reads offsets of consumer groups from the output of ``qdo offsets show --json``, one partition per line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from queuey.model import ids
from queuey.model.ids import FIRST, Position
from queuey.spark.errors import OptionError

Offsets = Mapping[str, Mapping[int, Position]]
"""Queue -> partition -> the position up to which all messages were processed."""


class _Line(msgspec.Struct, frozen=True):
    queue: str
    partition: int
    offset: str | None
    app: str | None = None
    host: str | None = None


def read(path: Path, application: str) -> Offsets:
    """Reads a file of offsets.

    Raises:
        OptionError: The file cannot be read, has an invalid line, two offsets for one partition, or offsets of one
            queue on two hosts.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise OptionError(f"The offsets in {path} cannot be read: {reason}.") from error
    return parse_lines(text.splitlines(), application, str(path))


def parse_lines(lines: Iterable[str], application: str, name: str) -> Offsets:
    """Parses lines of offsets; skips blank lines and lines of other applications.

    A line without an application counts. A partition without processed messages has the offset null, or the lowest
    possible one.

    Raises:
        OptionError: As in :func:`read`.
    """
    offsets: dict[str, dict[int, Position]] = {}
    hosts: dict[str, str | None] = {}
    for number, text in enumerate(lines, 1):
        if not text.strip():
            continue
        try:
            line = msgspec.json.decode(text, type=_Line)
            position = FIRST if line.offset is None else ids.parse_position(line.offset)
        except ValueError as error:
            raise OptionError(f"{name}, line {number}, is not an offset from qdo offsets show --json.") from error
        if line.app not in {None, application}:
            continue
        if hosts.setdefault(line.queue, line.host) != line.host:
            raise OptionError(f"{name} has offsets of queue {line.queue!r} on two hosts; keep the lines of one host.")
        if offsets.setdefault(line.queue, {}).setdefault(line.partition, position) != position:
            raise OptionError(f"{name} has two offsets of partition {line.partition} of queue {line.queue!r}.")
    return offsets
