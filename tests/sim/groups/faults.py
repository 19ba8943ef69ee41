"""Faults of users' programs: callbacks and handlers that overrun, swallow their cancellation, or never end."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from random import Random
from typing import Any

from queuey.client import Message
from tests.sim.world import World

CALLBACKS, HANDLERS = (4, 1), (6, 3)
"""Which histories have bad callbacks, and which have bad handlers: a divisor of the seed, and the remainder."""
BAD_CALLS, BAD_ATTEMPTS, BAD_MESSAGES = 0.3, 0.15, 0.05
"""Fractions of calls, of attempts, and of messages whose every attempt hangs."""
MAX_BAD_ATTEMPTS, MAX_BAD_MESSAGES = 6, 2
"""Per history."""
STALLED_AFTER, STOPPING = 1.5, 0.5
"""Seconds until an attempt counts as failed, and for which a cancelled one may go on."""


class UserFaults:
    """The faults of users' programs in one history.

    They draw from a random generator of their own, so they leave all other random choices as they are.

    Args:
        seed: The seed of the history.
        world: The simulated world.
        revoke_timeout: Max seconds of a callback.

    Attributes:
        handlers: Whether handlers have faults.
        bad_messages: Whether every attempt at a message may hang. Only if messages are given up.
        end: The instant from which on callbacks have no faults.
    """

    def __init__(self, seed: int, world: World, revoke_timeout: float) -> None:
        self.callbacks, self.handlers = (seed % divisor == rest for divisor, rest in (CALLBACKS, HANDLERS))
        self.bad_messages = True
        self.end = float("inf")
        self._world = world
        self._rng = Random(~seed)
        self._revoke_timeout = revoke_timeout
        self._hanging: dict[str, bool] = {}
        self._attempts = MAX_BAD_ATTEMPTS

    def in_callback(self) -> Coroutine[Any, Any, None] | None:
        """Returns a fault for a callback, or None. Each ends, because later callbacks wait for it."""
        if not self.callbacks or self._world.now >= self.end or self._rng.random() >= BAD_CALLS:
            return None
        seconds = self._rng.uniform(0.5, 2.0) * max(1.0, self._revoke_timeout)
        return self._rng.choice(_KINDS[:3])(seconds)

    def in_handler(self, message: Message) -> Coroutine[Any, Any, None] | None:
        """Returns a fault for an attempt, or None if it ends in time."""
        if not self.handlers:
            return None
        if (hangs := self._hanging.get(message.id)) is None:
            hangs = self._rng.random() < BAD_MESSAGES and sum(self._hanging.values()) < MAX_BAD_MESSAGES
            hangs = self._hanging[message.id] = hangs and self.bad_messages
        if not hangs:
            if not self._attempts or self._rng.random() >= BAD_ATTEMPTS:
                return None
            self._attempts -= 1
        kind = self._rng.choice((_overrun, _hang) if hangs else _KINDS)
        return kind(1000.0 if hangs else self._rng.uniform(0.5, 3.0) * STALLED_AFTER)


async def _overrun(seconds: float) -> None:
    await asyncio.sleep(seconds)


async def _swallow(seconds: float) -> None:
    """Sleeps for ``seconds`` and ignores cancellation."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while (rest := end - loop.time()) > 0:
        try:
            await asyncio.sleep(rest)
        except asyncio.CancelledError:
            continue


async def _cancel(seconds: float) -> None:
    await asyncio.sleep(seconds / 4)
    raise asyncio.CancelledError


async def _hang(_seconds: float) -> None:
    while True:
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            continue


_KINDS = (_overrun, _swallow, _cancel, _hang)
