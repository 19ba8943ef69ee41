"""Log records of a worker, on standard error."""

from __future__ import annotations

import logging
import sys

from queuey.terminal.logs import LineFormatter

CHATTY = ("httpx2", "httpcore2", "kazoo")
"""Libraries that log every request; only their warnings are shown."""


OURS = ("qdo", "queuey")


def enable() -> None:
    """Enables our loggers again: ``logging.config`` disables those of other modules unless it is told not to."""
    for name in list(logging.root.manager.loggerDict):
        if name.partition(".")[0] in OURS:
            logging.getLogger(name).disabled = False


def configure(level: str, form: str) -> None:
    """Sends the records of this process to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter(form))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for name in CHATTY:
        logging.getLogger(name).setLevel(logging.WARNING)
