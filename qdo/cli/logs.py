"""Log records of a worker, on standard error."""

from __future__ import annotations

import logging
import sys

from queuey.terminal.logs import LineFormatter

CHATTY = ("httpx2", "httpcore2", "kazoo")
"""Libraries that log every request; only their warnings are shown."""


def configure(level: str, form: str) -> None:
    """Sends the records of this process to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter(form))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for name in CHATTY:
        logging.getLogger(name).setLevel(logging.WARNING)
