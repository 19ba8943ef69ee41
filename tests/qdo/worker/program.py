"""Handlers of workers in processes of their own, for ``qdo work``."""

from __future__ import annotations

import asyncio
import ctypes
import multiprocessing
import time
from pathlib import Path

from queuey.client import Message
from tests.waiting import until, until_async


def handle(message: Message, context: object) -> None:
    """Takes as many seconds as the body says; ``crash``, ``hold``, ``wait`` and ``fork`` do what their names say."""
    say("begun", message.body)
    what, _, how = message.body.partition(" ")
    match what:
        case "crash":
            ctypes.string_at(0)
        case "hold":
            ctypes.PyDLL(None).usleep(int(float(how) * 1_000_000))  # In C, with the interpreter: no other thread runs.
        case "wait":
            until(Path(how).exists)
        case "fork":
            fork()
        case _:
            time.sleep(float(how or 0))
    say("done", message.body)


async def handle_async(message: Message, context: object) -> None:
    """Waits as many seconds as the body says, waits for a file, or ends a child process."""
    say("begun", message.body)
    what, _, how = message.body.partition(" ")
    match what:
        case "wait":
            await until_async(Path(how).exists)
        case "fork":
            fork()
        case _:
            await asyncio.sleep(float(how or 0))
    say("done", message.body)


def fork() -> None:
    """Ends a child process, as a pool does."""
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
    child.start()
    child.terminate()
    child.join(60)
    say("forked", child.exitcode)


def say(*words: object) -> None:
    print(*words, flush=True)  # noqa: T201 - the test reads it
