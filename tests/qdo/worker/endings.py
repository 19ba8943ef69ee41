"""Handlers of every form for child processes. The message chooses how they end."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from contextlib import suppress

from qdo import Jobs
from queuey.client import Message


def end(how: str) -> None:
    match how:
        case "sleeps":
            time.sleep(600)
        case "swallows":
            while True:  # bounded: by its executor, which kills the process
                with suppress(BaseException):
                    time.sleep(600)
        case "exits":
            os._exit(3)
        case "is killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case "leaves":
            sys.exit(0)
        case "forks":
            child = os.fork()
            if not child:
                time.sleep(600)
            os.kill(child, signal.SIGTERM)
            os.waitpid(child, 0)


async def end_async(how: str) -> None:
    while how == "swallows":  # bounded: by its executor, which kills the process
        with suppress(BaseException):
            await asyncio.sleep(600)
    end(how)


def function(message: Message, _: object) -> None:
    end(message.body)


async def coroutine_function(message: Message, _: object) -> None:
    await end_async(message.body)


mixed_jobs = Jobs("mixed")


def task(how: str) -> None:
    """Runs a loop of its own, and ends like :func:`end`."""
    asyncio.run(asyncio.sleep(0))
    end(how)


mixed_jobs.task(name="plain", timeout=0.5)(task)
mixed_jobs.task(name="async", timeout=0.5)(end_async)
