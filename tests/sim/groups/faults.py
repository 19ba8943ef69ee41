"""Faults of users' programs: callbacks and handlers that overrun, swallow their cancellation, or never end."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from random import Random
from typing import Any

from queuey.client import Message
from tests.sim.world import World

CALLBACKS, HANDLERS = (4, 1), (6, 3)
"""Histories with such callbacks, and with such handlers: a divisor of their seeds, and the rest."""
BAD_CALLS, BAD_ATTEMPTS, BAD_MESSAGES = 0.3, 0.15, 0.05
"""Ratios of calls, of attempts, and of messages whose every attempt hangs."""
MAX_BAD_ATTEMPTS, MAX_BAD_MESSAGES = 6, 2
"""In one history."""
STALLED_AFTER, STOPPING = 1.5, 0.5
"""Seconds after which an attempt counts as failed, and for which a cancelled one may go on."""


class UserFaults:
    """The faults of users' programs in one history.

    Its chance is its own: it leaves all other chance as it is.

    Args:
        seed: Of the history.
        world: Where it happens.
        revoke_timeout: Seconds that a callback has.

    Attributes:
        handlers: Handlers have faults.
        bad_messages: Some messages are given up, so every attempt at one may hang.
        end: The instant from which on callbacks have none.
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

    def in_callback(self, *, ends: bool = False) -> Coroutine[Any, Any, None] | None:
        """Returns what a callback does beside its work.

        Args:
            ends: It does not go on for ever.
        """
        if not self.callbacks or self._world.now >= self.end or self._rng.random() >= BAD_CALLS:
            return None
        seconds = self._rng.uniform(0.5, 2.0) * max(1.0, self._revoke_timeout)
        return self._rng.choice(_KINDS[:3] if ends else _KINDS)(seconds)

    def in_handler(self, message: Message) -> Coroutine[Any, Any, None] | None:
        """Returns what an attempt does beyond its time; None: it ends in time."""
        if not self.handlers:
            return None
        if (bad := self._hanging.get(message.id)) is None:
            bad = self._rng.random() < BAD_MESSAGES and sum(self._hanging.values()) < MAX_BAD_MESSAGES
            bad = self._hanging[message.id] = bad and self.bad_messages
        if not bad:
            if not self._attempts or self._rng.random() >= BAD_ATTEMPTS:
                return None
            self._attempts -= 1
        kind = self._rng.choice((_overrun, _hang) if bad else _KINDS)
        return kind(1000.0 if bad else self._rng.uniform(0.5, 3.0) * STALLED_AFTER)


async def _overrun(seconds: float) -> None:
    await asyncio.sleep(seconds)


async def _swallow(seconds: float) -> None:
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
