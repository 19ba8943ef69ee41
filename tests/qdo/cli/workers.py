"""``qdo work`` in processes, with handlers that print what they do."""

from __future__ import annotations

import queue as queues
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.commands import Run

SECONDS = 60.0

HANDLERS = '''
"""Handlers of these tests; they say on standard output what they do."""

import asyncio
import ctypes
import os
import threading

from qdo.worker.failure import StopWorker

def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

def handle(message, context):
    say("handled", message.partition, message.body)

def printing(message, context):
    print("printed", message.body)

def fail(message, context):
    raise ValueError(f"cannot bear {message.body}")

def enough(message, context):
    if message.body == "enough":
        raise StopWorker
    handle(message, context)

def never(message, context):
    say("begun", message.body)
    threading.Event().wait()

async def stubborn(message, context):
    say("begun", message.body)
    while message.body == "stubborn":
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            say("cancelled")

def background(message, context):
    threading.Thread(target=threading.Event().wait, daemon=False).start()
    say("begun", message.body)

async def in_thread(message, context):
    background(message, context)
    await asyncio.to_thread(threading.Event().wait)

async def blocking(message, context):
    say("begun", message.body)
    while message.body == "blocking":
        pass
    say("done", message.body)

def holding(message, context):
    say("begun", message.body)
    if message.body == "holding":
        ctypes.PyDLL(None).sleep(600)  # In C, with the interpreter: no other thread runs.
    say("done", message.body)

async def slow(message, context):
    say("begun", message.body)
    await asyncio.sleep(60)

def counted(message, context):
    context.append(message.body)
    say("count", len(context))

def context():
    say("entered")
    return []

def broken():
    raise OSError("no database")
'''


class WorkerProcess:
    """A worker in a process.

    Args:
        command: The arguments of ``qdo work``.
        directory: Its working directory.
        variables: Its environment.
    """

    def __init__(self, command: list[str], directory: Path, variables: dict[str, str]) -> None:
        self.log: list[str] = []
        self._said: queues.Queue[str | None] = queues.Queue()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "qdo", "work", *command],
            cwd=directory,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._readers = [threading.Thread(target=self._read_out), threading.Thread(target=self._read_log)]
        for reader in self._readers:
            reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.wait_for_end()

    def read_lines(self, count: int) -> list[str]:
        """Waits for the next lines of output; fails with the log if the worker ends first."""
        lines = [self._said.get(timeout=SECONDS) for _ in range(count)]
        assert None not in lines, "".join(self.log)
        return [str(line) for line in lines]

    def wait_for_log(self, pattern: str) -> str:
        until = time.monotonic() + SECONDS
        while (found := re.search(pattern, "".join(list(self.log)))) is None:
            assert time.monotonic() < until, "".join(self.log)
            time.sleep(0.01)
        return found[0]

    def read_remaining_lines(self) -> list[str]:
        return [str(line) for line in iter(self._said.get, None)]

    def wait_for_end(self) -> int:
        code = self.process.wait(SECONDS)
        for reader in self._readers:
            reader.join(SECONDS)
        return code

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.wait_for_end()

    def _read_out(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                self._said.put(line.strip())
        self._said.put(None)

    def _read_log(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as lines:
            self.log.extend(lines)


class Hire:
    """Starts workers for a test, in a directory with the module ``handlers``.

    Args:
        directory: Their working directory, which gets the module.
        variables: Their environment.
    """

    def __init__(self, directory: Path, variables: dict[str, str]) -> None:
        (directory / "handlers.py").write_text(HANDLERS)
        self.directory = directory
        self.variables = variables

    def __call__(self, *command: str) -> WorkerProcess:
        return WorkerProcess(list(command), self.directory, self.variables)


def wait_until_caught_up(run: Run) -> None:
    status: dict[str, Any] = {"lag": None, "partitions": []}
    deadline = time.monotonic() + 2 * SECONDS
    while not status["partitions"] or status["lag"] != 0 or not all(line["offset"] for line in status["partitions"]):
        assert time.monotonic() < deadline, status
        status = run("status", "--json").json
