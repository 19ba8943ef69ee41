"""Handlers and tasks for worker programs and child processes. The message's body chooses what they do."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from qdo import Jobs
from qdo.worker.handlers import delivery
from queuey.client import Message
from tests.waiting import until, until_async

PREPARED: list[str] = []


def note(text: str) -> None:
    """Adds a line to the file named by the environment; without one, prints it."""
    if (path := os.environ.get("TEST_BOOK")) is None:
        print(text, flush=True)  # noqa: T201 - the test reads it
        return
    with Path(path).open("a") as file:
        file.write(f"{text}\n")


def prepare(word: str) -> None:
    """Keeps a word in the child process, before anything else runs there."""
    PREPARED.append(word)


@contextlib.contextmanager
def book() -> Iterator[None]:
    """Records when the context is entered and left."""
    note(f"entered {os.getpid()} {''.join(PREPARED)}")
    yield
    note(f"left {os.getpid()}")


def broken() -> object:
    raise OSError("no database")


class Panic(BaseException):
    """An error as extensions in Rust raise it."""


def fail(kind: str) -> None:
    errors = {"panic": Panic, "interrupt": KeyboardInterrupt, "stop": GeneratorExit}
    raise errors.get(kind, ValueError)(f"cannot {kind}")


def kill_worker(_: str) -> None:
    """Kills the worker, from within or from one of its child processes."""
    is_child = "qdo.worker.executors.child" in " ".join(sys.orig_argv)
    os.kill(os.getppid() if is_child else os.getpid(), signal.SIGKILL)
    time.sleep(600)


def fork(_: str) -> None:
    """Ends a child process, as a pool does."""
    child = os.fork()
    if not child:
        time.sleep(600)
    os.kill(child, signal.SIGTERM)
    note(f"forked {os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}")


def leave_orphan(_: str) -> None:
    if os.fork() == 0:
        time.sleep(600)
    note(f"orphan {os.getpid()} {os.getpgid(0)}")
    os._exit(3)


def swallow(_: str) -> None:
    while True:  # bounded: by its executor, which kills the process
        with contextlib.suppress(BaseException):
            time.sleep(600)


def hold(seconds: str) -> None:
    """Holds the interpreter in C: no other thread runs."""
    ctypes.PyDLL(None).usleep(int(float(seconds) * 1_000_000))


ACTS: Mapping[str, Callable[[str], object]] = {
    "crash": lambda _: ctypes.string_at(0),
    "exit": lambda _: os._exit(3),
    "kill": lambda _: os.kill(os.getpid(), signal.SIGKILL),
    "murder": kill_worker,
    "leave": lambda _: sys.exit(0),
    "task": lambda _: sys.exit(3),
    "wait": lambda path: until(Path(path).exists),
    "sleep": lambda seconds: time.sleep(float(seconds)),
    "rest": lambda seconds: time.sleep(float(seconds)),
    "raise": fail,
    "fork": fork,
    "orphan": leave_orphan,
    "swallow": swallow,
    "hold": hold,
}
"""What a message does by the first word of its body; with any other word it does nothing."""


def act(body: str) -> None:
    how, _, value = body.partition(" ")
    ACTS.get(how, str)(value)


async def act_async(body: str) -> None:
    """Does the same, and waits for a file or for some seconds without blocking the loop."""
    how, _, value = body.partition(" ")
    if how == "wait":
        await until_async(Path(value).exists)
    while how == "swallow":  # bounded: by its executor, which kills the process
        with contextlib.suppress(BaseException):
            await asyncio.sleep(600)
    if how == "rest":
        await asyncio.sleep(float(value))
    elif how == "task":
        await asyncio.create_task(leave())
    elif how != "wait":
        act(body)


async def leave() -> None:
    sys.exit(3)


def handle(message: Message, _: object) -> None:
    note(f"attempt {delivery().attempt} {message.body}")
    note(f"begun {message.body}")
    act(message.body)
    note(f"done {message.body}")


async def handle_async(message: Message, _: object) -> None:
    note(f"begun {message.body}")
    await act_async(message.body)
    note(f"done {message.body}")


def end_last(message: Message, _: object) -> None:
    """The job ``last N`` ends once N others are done, or after a minute."""
    do, _, count = message.body.partition(" ")
    record, deadline = Path(os.environ["TEST_BOOK"]), time.monotonic() + 60
    while do == "last" and record.read_text().count("done") < int(count) and time.monotonic() < deadline:
        time.sleep(0.01)
    note(f"done {message.body}")


def task(body: str) -> None:
    """Runs a loop of its own, and ends like :func:`act`."""
    asyncio.run(asyncio.sleep(0))
    act(body)


mixed_jobs = Jobs("mixed")
mixed_jobs.task(name="plain", timeout=0.5)(task)
mixed_jobs.task(name="async", timeout=0.5)(act_async)
