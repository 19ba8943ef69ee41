"""Describes Spark's errors in one line, without the stack traces of two languages."""

from __future__ import annotations

import logging
import re
from types import TracebackType
from typing import NamedTuple

_TRACEBACK_HEAD = "Traceback (most recent call last):"
_RAISED = re.compile(r"^(?P<kind>[A-Za-z_][\w.]*)(?:: (?P<text>.*))?$")
_FOREIGN_MODULES = ("pyspark.", "py4j.")
_USAGE_ERRORS = frozenset({"OptionError", "AnalysisException", "ParseException", "InvalidArgument"})
_CAUSE = re.compile(r"^Caused by: [\w.$]+: (.+)$", re.MULTILINE)
_CALLING = re.compile(r"^An error occurred while calling [^\n]*\n: (?:[\w.$]+: )?")


_DEAD_JAVA_TEXT = (
    "The Java process of Spark has ended: killed, or out of memory (--conf spark.driver.memory=4g gives it more)."
)
_LOGGER_NAMES = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")
"""Loggers of PySpark, which also write raised errors with their stack traces to standard error."""


class SparkFailure(NamedTuple):
    """A failure to show to users.

    Attributes:
        text: One line.
        usage: True if the request is not valid, so that a retry is useless.
    """

    text: str
    usage: bool


def silence_spark_loggers() -> None:
    """Silences Spark's loggers, and py4j's, which logs each broken connection to a dead Java process."""
    from pyspark.logger import PySparkLogger

    for name in _LOGGER_NAMES:
        PySparkLogger.getLogger(name).disabled = True
    logging.getLogger("py4j").setLevel(logging.CRITICAL + 1)


def explain(error: BaseException) -> SparkFailure | None:
    """Returns the description of a Spark error, or None if it is another error.

    An error that Queuey raised in a task is described by its text alone. Errors of py4j's connection count as the death
    of Spark's Java process.
    """
    kind = type(error)
    if kind.__name__ == "Py4JNetworkError" or (
        isinstance(error, OSError | EOFError) and _is_from_py4j(error.__traceback__)
    ):
        return SparkFailure(_DEAD_JAVA_TEXT, usage=False)
    if not kind.__module__.startswith(_FOREIGN_MODULES):
        return None
    whole = str(error)
    if _TRACEBACK_HEAD in whole:
        name, text = _parse_traceback(whole)
        bare = name.rpartition(".")[2]
        ours = name.startswith("queuey.")
        return SparkFailure(text if ours and text else f"{bare}: {text}" if text else bare, bare in _USAGE_ERRORS)
    causes = _CAUSE.findall(whole)
    usage = kind.__name__ in _USAGE_ERRORS
    text = causes[-1] if causes and not usage else _CALLING.sub("", whole)
    return SparkFailure(_first_line(text) or kind.__name__, usage)


def _is_from_py4j(trace: TracebackType | None) -> bool:
    while trace is not None:
        if str(trace.tb_frame.f_globals.get("__name__", "")).startswith("py4j."):
            return True
        trace = trace.tb_next
    return False


def _parse_traceback(traceback_text: str) -> tuple[str, str]:
    """Returns type and message of the error of the last traceback; ``Exception`` and no text if none is found."""
    for line in traceback_text.rpartition(_TRACEBACK_HEAD)[2].splitlines():
        match = _RAISED.match(line)
        if match is not None:
            return match["kind"], match["text"] or ""
    return "Exception", ""


def _first_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    # Spark ends the first line with a semicolon if a plan follows.
    return lines[0].rstrip(";") if lines else ""
