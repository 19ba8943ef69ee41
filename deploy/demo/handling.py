"""What the demo's workers do with a notice: some effort, then they write down who handled it."""

from __future__ import annotations

import os
import time

EFFORT_SECONDS = 0.003

_record = os.open(os.environ["DEMO_RECORD"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def handle(message: object, context: object) -> None:  # noqa: ARG001 - what every handler takes
    """Handles one notice: sleeps, then records the process, partition and id.

    The line is written in one piece, so that a kill leaves it whole or not at all.
    """
    time.sleep(EFFORT_SECONDS)
    line = f"{os.getpid()} {message.partition} {message.id}\n"  # type: ignore[attr-defined]
    os.write(_record, line.encode())
