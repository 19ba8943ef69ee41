"""Records the events of a member."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from qdo.group.records import Event

Found = TypeVar("Found")

PATIENCE = 60.0
"""Timeout in seconds of the waits in tests."""


class RecordedEvents:
    """Keeps the events of a session; the ``listen`` argument of a join.

    Attributes:
        events: All events, in order.
    """

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._news = asyncio.Event()
        self._read = 0

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        self._news.set()

    async def next(self, wanted: Event) -> None:
        """Waits for the next event of one kind, and skips those before it; supports one waiter at a time."""
        async with asyncio.timeout(PATIENCE):
            while wanted not in self.events[self._read :]:
                self._news.clear()
                await self._news.wait()
        self._read = self.events.index(wanted, self._read) + 1

    def forget(self) -> None:
        self._read = len(self.events)


async def eventually(
    heard: RecordedEvents, look: Callable[[], Awaitable[Found]], wanted: Callable[[Found], bool]
) -> Found:
    while not wanted(result := await look()):
        await heard.next("changed")
    return result
