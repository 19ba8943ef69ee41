"""River on SQLite: what sends is a program in Go, which gets a line for each call; workers are ``river work FILE``."""

from __future__ import annotations

import os
import subprocess

from bench.job_queues.side import FILE, RIVER


class River:
    """Asks the program, which takes some 10 µs a call beside River's work."""

    bulk = True

    def __init__(self) -> None:
        command = [os.environ[RIVER], "send", os.environ[FILE]]
        self._program = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def _ask(self, *line: object) -> int:
        assert self._program.stdin is not None
        assert self._program.stdout is not None
        self._program.stdin.write(" ".join(map(str, line)).encode() + b"\n")
        self._program.stdin.flush()
        return int(self._program.stdout.readline())

    def reset(self) -> None:
        """Empties the table."""
        self._ask("reset")

    def send(self, task: str, *arguments: float) -> None:
        """Inserts one job."""
        self._ask("send", task, *arguments)

    def send_many(self, task: str, arguments: tuple[float, ...], count: int) -> None:
        """Inserts jobs in one transaction."""
        self._ask("many", task, *arguments, count)

    def pending(self) -> int:
        """Counts what is not finished."""
        return self._ask("pending")


def side() -> River:
    """Returns what is measured."""
    return River()
