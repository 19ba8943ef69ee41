"""Handlers that child processes import. The message's body chooses what they do."""

from __future__ import annotations

import contextlib
import ctypes
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from qdo.worker.handlers import delivery
from queuey.client import Message

PREPARED: list[str] = []


def note(path: str, text: str) -> None:
    with Path(path).open("a") as file:
        file.write(f"{text}\n")


def prepare(word: str) -> None:
    """Keeps a word in the child process, before anything else runs there."""
    PREPARED.append(word)


@contextlib.contextmanager
def book() -> Iterator[str]:
    """Yields the file named by the environment; records when it is entered and left."""
    path = os.environ["TEST_BOOK"]
    note(path, f"entered {os.getpid()} {''.join(PREPARED)}")
    yield path
    note(path, f"left {os.getpid()}")


def broken() -> object:
    raise OSError("no database")


def obey(message: Message, context: Any) -> None:  # noqa: ANN401 - the book
    do, _, number = message.body.partition(" ")
    partition, attempt = delivery()
    note(context, f"begun {message.body} {os.getpid()} {partition.number} {attempt}")
    match do:
        case "raise":
            raise ValueError(f"cannot {message.body}")
        case "crash":
            ctypes.string_at(0)
        case "orphan":
            if os.fork() == 0:
                time.sleep(600)
            note(context, f"orphan {os.getpid()} {os.getpgid(0)}")
            os._exit(3)
        case "slow":
            time.sleep(float(number))
    note(context, f"done {message.body}")


async def obey_async(message: Message, context: Any) -> None:  # noqa: ANN401 - the book
    obey(message, context)


def end_last(message: Message, context: Any) -> None:  # noqa: ANN401 - the book
    """The job ``last N`` ends once N others are done, or after a minute."""
    do, _, count = message.body.partition(" ")
    deadline = time.monotonic() + 60
    while do == "last" and Path(context).read_text().count("done") < int(count) and time.monotonic() < deadline:
        time.sleep(0.01)
    note(context, f"done {message.body}")
