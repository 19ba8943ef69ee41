"""How a waiting poll is made to look again."""

from __future__ import annotations

import asyncio


class Signal:
    """Lets coroutines of one loop wait until something may have changed."""

    def __init__(self) -> None:
        self._waiters: set[asyncio.Future[bool]] = set()

    def ring(self) -> None:
        """Wakes everybody who waits now; whoever looks before it waits misses nothing."""
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(True)

    async def wait(self, deadline: float | None) -> bool:
        """Waits for a ring; returns False if the deadline (of the loop's clock; None: never) came first."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[bool] = loop.create_future()
        timer = None if deadline is None else loop.call_at(deadline, _expire, waiter)
        self._waiters.add(waiter)
        try:
            return await waiter
        finally:
            self._waiters.discard(waiter)
            if timer is not None:
                timer.cancel()


def _expire(waiter: asyncio.Future[bool]) -> None:
    if not waiter.done():
        waiter.set_result(False)
