"""Offsets from files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from queuey import ids
from queuey.pipeline import offset_files
from queuey.spark.errors import OptionError

ONE, TWO = (ids.to_hex((ids.EPOCH_TICKS + tick, 5)) for tick in (1, 2))


def line(queue: str, partition: int, offset: str | None, app: str = "acme", host: str = "main") -> str:
    place = {"host": host, "app": app, "queue": queue, "partition": partition}
    return json.dumps({**place, "offset": offset, "recorded": 1.5, "member": None})


def test_lines_of_qdo() -> None:
    """Offsets are read by queue and partition; a missing offset means the beginning; other applications are ignored."""
    lines = [line("q", 1, ONE), "", line("q", 2, None), line("r", 1, TWO), line("r", 9, ONE, app="other")]
    assert offset_files.parse_lines(lines, "acme", "f") == {
        "q": {1: ids.parse_position(ONE), 2: ids.FIRST},
        "r": {1: ids.parse_position(TWO)},
    }


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["{"], "line 1"),
        ([line("q", 1, ONE), line("q", 2, "no id")], "line 2"),
        (['{"queue":"q"}'], "line 1"),
        ([line("q", 1, ONE), line("q", 1, TWO)], "two offsets"),
        ([line("q", 1, ONE), line("q", 2, ONE, host="other")], "two hosts"),
    ],
)
def test_what_is_no_such_file_is_refused(lines: list[str], words: str) -> None:
    """An invalid line, or one that contradicts another, is named."""
    with pytest.raises(OptionError, match=words):
        offset_files.parse_lines(lines, "acme", "f")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    """An unreadable file gives one clear error."""
    for path in (tmp_path, tmp_path / "absent"):
        with pytest.raises(OptionError, match="cannot be read"):
            offset_files.read(path, "acme")
