"""How a member of a group behaves, and what its session reports."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from qdo.coordination import Event
from qdo.errors import SessionLost
from queuey.client import RetryPolicy

log = logging.getLogger(__name__)

_BACKOFF = RetryPolicy(base=0.1, cap=2.0)
"""How long to pause between attempts while the service does not answer."""


class SessionOptions(NamedTuple):
    """How a member behaves.

    Attributes:
        settle: Seconds for which changes gather before it sets the target, when it leads; see
            :mod:`qdo.consumer.rebalance.debounce`.
        grace: Seconds for which absent static members keep their partitions.
        revoke_timeout: Seconds after which a partition is released even if its owner is not done.
        patience: Seconds for which a commit is tried again while the service does not answer, and for which the end
            of what is under way is waited for when the group is left.
        recheck: Seconds after which it looks again although no change was heard of.
        now: The clock, seconds since 1970.
        draw: Random numbers from 0 to 1.
    """

    settle: float = 0.05
    grace: float = 0.0
    revoke_timeout: float = 30.0
    patience: float = 10.0
    recheck: float = 60.0
    now: Callable[[], float] = time.time
    draw: Callable[[], float] = random.random

    def pause(self, failures: int) -> float:
        """Returns the seconds to wait after so many failures in a row."""
        return _BACKOFF.pause(failures, self.draw())


DEFAULT_OPTIONS: Final = SessionOptions()


class SessionEvents:
    """What a session reports.

    Args:
        notified: Told of every event, at once.

    Attributes:
        changed: There is something to look at.
        lost: The session is over.
        over: It is, or is to be left.
        suspended: Nobody answers at present.
    """

    def __init__(self, notified: Callable[[Event], None]) -> None:
        self.changed = asyncio.Event()
        self.lost = asyncio.Event()
        self.over = asyncio.Event()
        self.suspended = False
        self._on_event = notified

    def __call__(self, event: Event) -> None:
        """Takes an event of the session."""
        if self.lost.is_set():
            return
        if event == "lost":
            self.lost.set()
            self.over.set()
        elif event != "changed":
            self.suspended = event == "suspended"
        self.changed.set()
        self._on_event(event)

    async def sleep(self, seconds: float) -> None:
        """Sleeps.

        Raises:
            SessionLost: The session ended meanwhile.
        """
        try:
            async with asyncio.timeout(seconds):
                await self.lost.wait()
        except TimeoutError:
            return
        raise SessionLost("the session is over")

    def ended(self, task: asyncio.Task[None]) -> None:
        """Takes the end of work without which there is no taking part: its failure ends the session."""
        if task.cancelled() or (error := task.exception()) is None:
            return
        if not isinstance(error, SessionLost):
            log.error("an error in the group member; its session ends", exc_info=error)
        self("lost")
