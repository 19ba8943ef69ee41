"""Moves between queues that a program has begun: wait for the end, or cancel."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from queuey.client.calls import move_calls
from queuey.client.calls.call import Call
from queuey.client.errors import AnswerTimeout
from queuey.client.http.attempts import AsyncTiming, Timing
from queuey.client.results import Move

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0
"""Seconds between two looks."""

Told = Callable[[Move], object]
"""Called with how the move stands at each look."""


class Moving:
    """A move. It goes on without this program.

    Example:
        >>> _ = client.create_queue("old-orders")
        >>> moving = client.move("orders", "old-orders")
        >>> moving.wait().state
        'done'

    Attributes:
        id: Names the move: ``client.moving(id)`` gives this object again, in any program.
    """

    def __init__(self, identifier: str, run: Callable[[Call[Move]], Move], timing: Timing) -> None:
        self.id = identifier
        self._run = run
        self._timing = timing

    def show(self) -> Move:
        """Returns how the move stands."""
        return self._run(move_calls.show(self.id))

    def cancel(self) -> Move:
        """Has the move end soon; what has been moved stays in the target. One that has ended stays as it is."""
        return self._run(move_calls.cancel(self.id))

    def wait(self, timeout: float | None = None, *, told: Told | None = None) -> Move:
        """Waits for the end and returns how the move stands then: ``done``, ``cancelled``, or ``failed``.

        Args:
            timeout: Seconds to wait at most; None: as long as it takes.
            told: Called with how the move stands, about once a second.

        Raises:
            AnswerTimeout: It has not ended in time, and goes on.
        """
        waits = _Waits(timeout, self._timing.clock())
        while True:
            move = self.show()
            if told is not None:
                told(move)
            if move.ended is not None:
                return move
            self._timing.sleep(waits.next(self.id, self._timing.clock()))


class AsyncMoving:
    """A move, for async code; see :class:`Moving`.

    Example:
        >>> import asyncio
        >>> from queuey.client import AsyncClient
        >>> async def main():
        ...     async with AsyncClient() as client:
        ...         await client.create_queue("old-orders")
        ...         moving = await client.move("orders", "old-orders")
        ...         move = await moving.wait()
        ...         print(move.moved)
        >>> asyncio.run(main())
        2
    """

    def __init__(self, identifier: str, run: Callable[[Call[Move]], Awaitable[Move]], timing: AsyncTiming) -> None:
        self.id = identifier
        self._run = run
        self._timing = timing

    async def show(self) -> Move:
        """Returns how the move stands."""
        return await self._run(move_calls.show(self.id))

    async def cancel(self) -> Move:
        """Has the move end soon; see :meth:`Moving.cancel`."""
        return await self._run(move_calls.cancel(self.id))

    async def wait(self, timeout: float | None = None, *, told: Told | None = None) -> Move:  # noqa: ASYNC109 - as sync
        """Waits for the end; see :meth:`Moving.wait`."""
        waits = _Waits(timeout, self._timing.clock())
        while True:
            move = await self.show()
            if told is not None:
                told(move)
            if move.ended is not None:
                return move
            await self._timing.sleep(waits.next(self.id, self._timing.clock()))


class _Waits:
    """How long to wait before each further look."""

    def __init__(self, timeout: float | None, now: float) -> None:
        self._until = None if timeout is None else now + timeout
        self._pause = FIRST_PAUSE

    def next(self, identifier: str, now: float) -> float:
        """Returns seconds.

        Raises:
            AnswerTimeout: The time is over.
        """
        if self._until is not None and now >= self._until:
            raise AnswerTimeout(f"move {identifier} has not ended in time; it goes on")
        pause, self._pause = self._pause, min(2 * self._pause, LONGEST_PAUSE)
        return pause if self._until is None else min(pause, max(0.0, self._until - now))
