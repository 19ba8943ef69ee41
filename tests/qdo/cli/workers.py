"""``qdo work`` in processes, with handlers that print what they do."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from tests.waiting import join

SECONDS = 60.0

HANDLERS = '''
"""Handlers of these tests; they say on standard output what they do."""

import asyncio
import ctypes
import os
import threading

def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

def handle(message, context):
    say("handled", message.partition, message.body)

def printing(message, context):
    print("printed", message.body)

def fail(message, context):
    raise ValueError(f"cannot bear {message.body}")

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

def broken():
    raise OSError("no database")
'''


class WorkerProcess:
    """A worker in a process.

    Args:
        command: The arguments of ``qdo work``.
        directory: Its working directory.
        variables: Its environment.

    Attributes:
        lines: What it has printed.
        log: Its log.
    """

    def __init__(self, command: list[str], directory: Path, variables: dict[str, str]) -> None:
        self.lines: list[str] = []
        self.log: list[str] = []
        self._read = 0
        self.process = subprocess.Popen(
            [sys.executable, "-m", "qdo", "work", *command],
            cwd=directory,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        pipes = ((self.process.stdout, self.lines), (self.process.stderr, self.log))
        self._readers = [threading.Thread(target=_read, args=pipe) for pipe in pipes]
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
        self._until(lambda: len(self.lines) >= self._read + count)
        self._read += count
        return self.lines[self._read - count : self._read]

    def wait_for(self, text: str) -> None:
        self._until(lambda: any(text in line for line in list(self.lines)))

    def said(self, word: str) -> list[str]:
        """Returns the lines that begin with a word, without it."""
        return [line.removeprefix(f"{word} ") for line in self.lines if line.startswith(f"{word} ")]

    def wait_for_log(self, pattern: str) -> str:
        self._until(lambda: re.search(pattern, "\n".join(list(self.log))))
        found = re.search(pattern, "\n".join(self.log))
        assert found is not None
        return found[0]

    def wait_for_end(self) -> int:
        code = self.process.wait(SECONDS)
        join(*self._readers)
        return code

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.wait_for_end()

    def _until(self, reached: Callable[[], object]) -> None:
        deadline = time.monotonic() + SECONDS
        while True:
            ended = not any(reader.is_alive() for reader in self._readers)
            if reached():
                return
            assert not ended, "\n".join(self.log)
            assert time.monotonic() < deadline, "\n".join(self.log)
            time.sleep(0.01)


def _read(pipe: IO[str], lines: list[str]) -> None:
    with pipe:
        lines.extend(line.rstrip("\n") for line in pipe)


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
