"""Log records of the service, on standard error."""

from __future__ import annotations

import logging
import logging.config
from typing import Any

from queuey.terminal.logs import LineFormatter


class QuietDriver(logging.Filter):
    """Drops what cassandra-driver says at every attempt to connect, with tracebacks; the store says why, once.

    Args:
        level: Least severe level to write; ``debug`` keeps everything.
    """

    def __init__(self, level: str) -> None:
        super().__init__()
        self._everything = level == "debug"

    def filter(self, record: logging.LogRecord) -> bool:
        return self._everything or not record.name.startswith("cassandra.")


def configuration(level: str, form: str) -> dict[str, Any]:
    """Returns the dictConfig of a process of the service.

    Args:
        level: Least severe level to write.
        form: ``text`` or ``json``.
    """
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"line": {"()": LineFormatter, "form": form}},
        "filters": {"driver": {"()": QuietDriver, "level": level}},
        "handlers": {
            "stderr": {
                "class": "logging.StreamHandler",
                "stream": "ext://sys.stderr",
                "formatter": "line",
                "filters": ["driver"],
            }
        },
        "root": {"level": level.upper(), "handlers": ["stderr"]},
    }


def configure(level: str, form: str) -> None:
    logging.config.dictConfig(configuration(level, form))
