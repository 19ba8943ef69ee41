"""Handlers that do what a body says: ``kill:3`` is the third message, and kills its worker."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from queuey.client import Message

_FOR_EVER = 3600.0


class Panic(BaseException):
    """An error as extensions in Rust raise it."""


RAISED = {
    "error": ValueError,
    "panic": Panic,
    "interrupt": KeyboardInterrupt,
    "leave": SystemExit,
    "stop": GeneratorExit,
}
ENDING = {"kill", "exit", "block", "task"}
"""Bodies that end the whole worker, some only after the time of ``--stalled-after``; ``task`` only in a loop."""
KINDS = {*RAISED, *ENDING, "hang", "swallow", "fine"}


def note(text: str) -> None:
    with Path(os.environ["HOSTILE_BOOK"]).open("a") as file:
        file.write(f"{text}\n")


def handle(message: Message, context: Any) -> None:  # noqa: ANN401 - the context is not used
    """Does what the kind of the body says, in a thread or process: ends its worker, fails, hangs, or is done."""
    kind = _begin(message)
    if kind == "block":
        ctypes.PyDLL(None).usleep(int(_FOR_EVER * 1_000_000))  # in C, with the interpreter: no other thread runs
    elif kind in {"hang", "swallow"}:
        time.sleep(_FOR_EVER)
    elif kind == "task":
        sys.exit(3)
    time.sleep(0.002)
    note(f"done {message.body}")


async def handle_async(message: Message, context: Any) -> None:  # noqa: ANN401 - likewise
    """Does what the kind of the body says, in a task. A hanging task can be cancelled; one that swallows cannot."""
    kind = _begin(message)
    if kind == "block":
        time.sleep(_FOR_EVER)  # noqa: ASYNC251 - blocks the loop on purpose
    if kind == "task":
        await asyncio.create_task(_leave())
    while kind in {"hang", "swallow"}:  # bounded: its worker is killed
        try:
            await asyncio.sleep(_FOR_EVER)
        except asyncio.CancelledError:
            if kind == "hang":
                raise
    await asyncio.sleep(0.002)
    note(f"done {message.body}")


async def _leave() -> None:
    sys.exit(3)


def _begin(message: Message) -> str:
    """Notes the begin. Raises an error, kills the worker or exits if the body's kind says so; else returns the kind."""
    kind = str(message.body).partition(":")[0]
    note(f"begun {message.body}")
    if kind in RAISED:
        raise RAISED[kind]
    if kind == "kill":
        os.kill(int(os.environ["HOSTILE_WORKER"]), signal.SIGKILL)
        time.sleep(_FOR_EVER)
    if kind == "exit":
        os._exit(7)
    return kind
