"""Tasks that run beside others, and events that are waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

CANCEL_GRACE = 1.0
"""Timeout in seconds for a call that was cancelled to clear up, before the next one is made."""


def start(work: Coroutine[Any, Any, T], running: set[asyncio.Task[T]]) -> asyncio.Task[T]:
    """Starts a task that is in ``running`` until it ends."""
    task = asyncio.get_running_loop().create_task(work)
    running.add(task)
    task.add_done_callback(running.discard)
    return task


async def cancel(*tasks: asyncio.Task[Any]) -> None:
    """Cancels tasks and waits for their end; their errors are ignored."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def happens(event: asyncio.Event, within: float) -> bool:
    """Waits for an event; returns False after ``within`` seconds."""
    try:
        async with asyncio.timeout(within):
            return await event.wait()
    except TimeoutError:
        return False


class Signal:
    """Something that happens again and again, and is waited for in one event loop.

    Attributes:
        next: Is set when it happens for the next time.
    """

    def __init__(self) -> None:
        self.next = asyncio.Event()

    def notify(self) -> None:
        self.next.set()
        self.next = asyncio.Event()
