"""Formats log records as lines of text for people, or as one JSON object per line for programs."""

from __future__ import annotations

import logging
from typing import Any

import msgspec

from queuey.model import time_parsing

_STANDARD_FIELDS = frozenset({*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"})


class LineFormatter(logging.Formatter):
    """Formats a record as ``2026-02-03T04:05:06.789Z INFO qdo.worker: message``, with a traceback on the lines below.

    A record about a message of a queue ends with the place of the message: ``(queue/partition id)``.

    As JSON: ``{"time", "level", "logger", "process", "message"}``, then the record's extra fields, and ``exception`` if
    there is one.

    Args:
        form: ``text`` or ``json``.
    """

    def __init__(self, form: str) -> None:
        super().__init__()
        self._json = form == "json"

    def format(self, record: logging.LogRecord) -> str:
        moment = time_parsing.format_instant(record.created)
        trace = self.formatException(record.exc_info) if record.exc_info else record.exc_text
        if not self._json:
            text = f"{moment} {record.levelname} {record.name}: {record.getMessage()}{_location_suffix(record)}"
            return text if trace is None else f"{text}\n{trace}"
        fields: dict[str, Any] = {
            "time": moment,
            "level": record.levelname.lower(),
            "logger": record.name,
            "process": record.process,
            "message": record.getMessage(),
            **{name: value for name, value in vars(record).items() if name not in _STANDARD_FIELDS},
        }
        if trace is not None:
            fields["exception"] = trace
        return msgspec.json.encode(fields, enc_hook=str).decode()


def _location_suffix(record: logging.LogRecord) -> str:
    fields = vars(record)
    if "message_id" not in fields:
        return ""
    return f" ({fields.get('queue')}/{fields.get('partition')} {fields['message_id']})"
