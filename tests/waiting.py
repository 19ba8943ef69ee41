"""Waiting for a condition in tests: always with a limit, and over at once when the awaited process has ended."""

from __future__ import annotations

import asyncio
import subprocess
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

from queuey.storage.deadlines import StoreCall

PATIENCE_SECONDS = 100.0
"""Default limit of a wait. Only a failure takes that long; a busy machine delays a thread by seconds."""
POLL_SECONDS = 0.01


def until(
    condition: Callable[[], object],
    seconds: float = PATIENCE_SECONDS,
    *,
    every: float = POLL_SECONDS,
    process: subprocess.Popen[Any] | None = None,
) -> None:
    """Waits until a condition is true.

    Args:
        condition: Called repeatedly.
        seconds: Limit of the wait.
        every: Interval between two calls, in seconds.
        process: The process that makes the condition true. When it ends, the condition is called once more.

    Raises:
        AssertionError: The limit was reached, or the process ended, and the condition is still false.
    """
    deadline = time.monotonic() + seconds
    while True:
        ended = process is not None and process.poll() is not None
        if condition():
            return
        if ended:
            raise AssertionError(f"{process.args!r} ended with {process.returncode}, and {condition} is still false")  # type: ignore[union-attr]
        if time.monotonic() > deadline:
            raise AssertionError(f"{condition} is still false after {seconds} s")
        time.sleep(every)


def join(*threads: threading.Thread, seconds: float = PATIENCE_SECONDS) -> None:
    """Waits until threads have ended.

    Raises:
        AssertionError: A thread is still alive after ``seconds``.
    """
    deadline = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(deadline - time.monotonic(), 0.0))
        assert not thread.is_alive(), f"{thread} is still alive after {seconds} s"


async def until_async(
    condition: Callable[[], object], seconds: float = PATIENCE_SECONDS, *, every: float = POLL_SECONDS
) -> None:
    """Waits on the event loop until a condition is true.

    Args:
        condition: Called repeatedly. A coroutine function is awaited.
        seconds: Limit of the wait.
        every: Interval between two calls, in seconds.

    Raises:
        AssertionError: The limit was reached, and the condition is still false.
    """
    deadline = time.monotonic() + seconds
    while True:
        result = condition()
        if isinstance(result, Awaitable):
            result = await result
        if result:
            return
        if time.monotonic() > deadline:
            raise AssertionError(f"{condition} is still false after {seconds} s")
        await asyncio.sleep(every)


def call_until(ends: float) -> StoreCall:
    """Returns a call of a store that ends at an instant of the store's clock."""
    call = StoreCall()
    call.ends = ends
    return call


class MovedClock:
    """A clock in seconds that a test moves by its attribute ``now``."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now
