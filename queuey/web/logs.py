"""Log records on standard error: lines for people, or one JSON object a line for programs."""

from __future__ import annotations

import logging
import logging.config
from datetime import UTC, datetime
from typing import Any

import msgspec

_NOISE = ("Configuration allows spawning up to", "Configured number of workers appears")


class TextFormatter(logging.Formatter):
    """``2026-02-03T04:05:06.789Z INFO queuey.web: message``, a traceback on the lines below."""

    def format(self, record: logging.LogRecord) -> str:
        """Formats one record."""
        text = f"{_instant(record)} {record.levelname} {record.name}: {record.getMessage()}"
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


class JsonFormatter(logging.Formatter):
    """``{"time", "level", "logger", "process", "message"}``, with ``exception`` when there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """Formats one record."""
        fields: dict[str, Any] = {
            "time": _instant(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "process": record.process,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(fields).decode()


class QuietGranian(logging.Filter):
    """Drops the server's advice on thread and worker counts, which are settings here."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Tells whether to keep a record."""
        return not str(record.msg).startswith(_NOISE)


class QuietDriver(logging.Filter):
    """Drops what cassandra-driver says at every attempt to connect, with tracebacks; the store says why, once.

    Args:
        level: Least severe level to write; ``debug`` keeps everything.
    """

    def __init__(self, level: str) -> None:
        super().__init__()
        self._everything = level == "debug"

    def filter(self, record: logging.LogRecord) -> bool:
        """Tells whether to keep a record."""
        return self._everything or not record.name.startswith("cassandra.")


def configuration(level: str, form: str) -> dict[str, Any]:
    """Returns the dictConfig of a process of the service.

    Args:
        level: Least severe level to write.
        form: ``text`` or ``json``.
    """
    formatter = JsonFormatter if form == "json" else TextFormatter
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"line": {"()": formatter}},
        "filters": {"granian": {"()": QuietGranian}, "driver": {"()": QuietDriver, "level": level}},
        "handlers": {
            "stderr": {
                "class": "logging.StreamHandler",
                "stream": "ext://sys.stderr",
                "formatter": "line",
                "filters": ["granian", "driver"],
            }
        },
        "root": {"level": level.upper(), "handlers": ["stderr"]},
        "loggers": {"_granian": {"propagate": True}, "granian.access": {"propagate": False}},
    }


def configure(level: str, form: str) -> None:
    """Sends the records of this process to standard error."""
    logging.config.dictConfig(configuration(level, form))


def _instant(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
