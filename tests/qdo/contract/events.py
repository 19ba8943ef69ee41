"""What a member was told."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from qdo.coordination import Event

Found = TypeVar("Found")

PATIENCE = 60.0
"""Seconds after which a test gives up waiting for what must come."""


class Heard:
    """Keeps the events that a session tells; the ``listen`` of a join.

    Attributes:
        events: All of them in order.
    """

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._news = asyncio.Event()
        self._read = 0

    def __call__(self, event: Event) -> None:
        """Hears of an event."""
        self.events.append(event)
        self._news.set()

    async def next(self, wanted: Event) -> None:
        """Waits for an event of one kind among those that no ``next`` has passed yet; one waiter at a time."""
        async with asyncio.timeout(PATIENCE):
            while wanted not in self.events[self._read :]:
                self._news.clear()
                await self._news.wait()
        self._read = self.events.index(wanted, self._read) + 1

    def forget(self) -> None:
        """Passes over what was heard so far."""
        self._read = len(self.events)


async def eventually(heard: Heard, look: Callable[[], Awaitable[Found]], wanted: Callable[[Found], bool]) -> Found:
    """Looks again after each change that a member is told of, until it sees what is wanted."""
    while not wanted(found := await look()):
        await heard.next("changed")
    return found
