"""The form of log lines."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path

from queuey.terminal.logs import LineFormatter


def record(message: str, *arguments: object, error: BaseException | None = None, **extra: object) -> logging.LogRecord:
    """A record as a logger makes it."""
    trace = None if error is None else (type(error), error, error.__traceback__)
    return logging.getLogger("qdo.worker").makeRecord(
        "qdo.worker", logging.WARNING, __file__, 1, message, arguments, trace, extra=extra
    )


def test_lines_for_people_name_the_message() -> None:
    """What is said of a message can be looked up by its queue, partition and id."""
    failed = record("attempt 1 failed", queue="crashes", partition=3, message_id="07f0fd9ee4db11f1b372138788ad4202")
    line = LineFormatter("text").format(failed)
    assert line.endswith("attempt 1 failed (crashes/3 07f0fd9ee4db11f1b372138788ad4202)")


def test_lines_for_programs() -> None:
    """One object a line, with everything that the record has, whatever it is, and the traceback as text."""
    found = json.loads(LineFormatter("json").format(record("a\nb", partitions=["a/1"], place=Path("x"), code=3)))
    assert found.pop("time").endswith("Z")
    assert found.pop("process") > 0
    assert found == {
        "level": "warning",
        "logger": "qdo.worker",
        "message": "a\nb",
        "partitions": ["a/1"],
        "place": "x",
        "code": 3,
    }
    try:
        raise ValueError("x")  # noqa: TRY301 - a traceback is wanted
    except ValueError:
        found = json.loads(LineFormatter("json").format(record("failed", error=sys.exc_info()[1])))
    assert found["exception"].endswith("ValueError: x")
