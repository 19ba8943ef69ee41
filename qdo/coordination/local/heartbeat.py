"""``python -m …local.heartbeat <program> <vitals> <line> <file> <session> <timeout>``; see :mod:`qdo.keepalive`.

Gives a program's signs of life in the file while the program's own thread cannot: when half of the session's time has
gone since the last one.
"""

from __future__ import annotations

import contextlib
import select
import socket
import sys
from pathlib import Path

from qdo.coordination.local import nodes
from qdo.coordination.local.database import CoordinationFile
from qdo.errors import CoordinationError
from qdo.keepalive.vitals import READY, Vitals, ignore_signals, now

RETRY = 0.1
"""Interval in seconds between two tries while the file cannot be used."""


def main(program: str, vitals: str, line: str, path: str, session: str, timeout: str) -> None:
    ignore_signals()
    known = Vitals(int(vitals), int(program))
    late = float(timeout) / 2
    database = CoordinationFile(Path(path), patience=late / 2)
    due = now() + late
    with socket.socket(fileno=int(line)) as talk:
        with contextlib.suppress(BrokenPipeError):  # The program has gone already, which ends the loop at once.
            talk.sendall(READY)
        while not select.select([talk], [], [], max(0.0, due - now()))[0]:
            due = (known.last_heard or 0.0) + late
            if due <= now():
                due = now() + (late / 2 if not known.running or _beat(database, int(session)) else RETRY)


def _beat(database: CoordinationFile, session: int) -> bool:
    """Returns whether the file could be used."""
    try:
        with database.transaction() as tx:
            nodes.renew(tx, session)
    except CoordinationError:
        return False
    return True


if __name__ == "__main__":
    main(*sys.argv[1:])
