"""How a waiting poll is made to look again."""

from __future__ import annotations

import asyncio


class Wakeup:
    """Lets coroutines of one loop wait until something may have changed."""

    def __init__(self) -> None:
        self._rung = asyncio.Event()

    def ring(self) -> None:
        """Wakes everybody who waits now; whoever looks before it waits misses nothing."""
        self._rung.set()
        self._rung.clear()

    async def wait(self, deadline: float | None) -> bool:
        """Waits for a ring; returns False if the deadline (of the loop's clock; None: never) came first."""
        try:
            async with asyncio.timeout_at(deadline):
                return await self._rung.wait()
        except TimeoutError:
            return False
