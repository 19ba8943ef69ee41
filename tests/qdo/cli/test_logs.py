"""The form of log lines."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path

import pytest

from qdo.cli.work import _imported
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


@pytest.mark.parametrize("named", [("configuring:handle", None), (None, "configuring:handle")])
def test_a_program_that_configures_logging(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: tuple[str | None, str | None]
) -> None:
    """Our records are written however the modules of handler and context configure logging."""
    text = 'import logging.config\nlogging.config.dictConfig({"version": 1})\ndef handle(message, context): ...\n'
    (tmp_path / "configuring.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "configuring", raising=False)
    ours = [logging.getLogger(name) for name in ("qdo.worker", "qdo", "queuey.client")]
    others = [one for one in logging.root.manager.loggerDict.values() if isinstance(one, logging.Logger)]
    before = [one.disabled for one in others]
    try:
        _imported(*named)
        assert [one.disabled for one in ours] == [False] * 3
    finally:
        for one, disabled in zip(others, before, strict=True):
            one.disabled = disabled


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
