"""From kazoo's thread to the event loop: what happened, in order, with one wake-up for all that comes at once."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable


class Inbox:
    """Filled by any thread, emptied by the loop that made it.

    Args:
        handle: Is given everything that has come, in the loop.
    """

    def __init__(self, handle: Callable[[list[Callable[[], None]]], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._handle = handle
        self._items: deque[Callable[[], None]] = deque()
        self._called = False

    def put(self, item: Callable[[], None]) -> None:
        """Leaves an item; never waits. After the loop has ended it is lost, as there is nobody to care."""
        self._items.append(item)
        if not self._called:
            self._called = True
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._empty)

    def _empty(self) -> None:
        # Before the items are taken: whoever puts one after the last was taken has to call again.
        self._called = False
        items = []
        while self._items:
            items.append(self._items.popleft())
        if items:
            self._handle(items)
