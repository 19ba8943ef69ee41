"""River on SQLite: a Go program sends the jobs, one line of input per call; workers run as ``river work FILE``."""

from __future__ import annotations

import os
import subprocess

from bench.job_queues.side import FILE, RIVER


class River:
    """Sends lines to the Go program, which costs about 10 µs per call on top of River's work."""

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
        self._ask("reset")

    def send(self, task: str, *arguments: float) -> None:
        self._ask("send", task, *arguments)

    def send_many(self, task: str, arguments: tuple[float, ...], count: int) -> None:
        self._ask("many", task, *arguments, count)

    def pending(self) -> int:
        return self._ask("pending")


def side() -> River:
    return River()
