"""One session of a member: how the member behaves meanwhile, and what it is told of the session."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from qdo.consumer.partition_listener import PartitionListener
from qdo.coordination import Event
from qdo.errors import SessionLost
from qdo.tasks import happens
from queuey.client import RetryPolicy

log = logging.getLogger(__name__)

_BACKOFF = RetryPolicy(base=0.1, cap=2.0)
"""Pauses between attempts while the service does not answer."""


class SessionOptions(NamedTuple):
    """The behaviour of a member.

    Attributes:
        settle: Seconds for which changes gather before it sets the target, when it leads; see
            :mod:`qdo.consumer.rebalance.member_states`.
        grace: Seconds for which absent static members keep their partitions.
        revoke_timeout: Seconds after which a partition is released even if its owner is not done.
        patience: Seconds for which a commit is tried again while the service does not answer, and for which the end
            of what is under way is waited for when the group is left.
        recheck: Seconds after which it checks again without a reported change.
        commit_messages: Number of handled messages after which their offsets are committed.
        commit_seconds: Seconds after which they are committed if fewer messages were handled.
        commit_listeners: Notified of commits.
        now: The clock, seconds since 1970.
        draw: Random numbers from 0 to 1.
    """

    settle: float = 0.05
    grace: float = 0.0
    revoke_timeout: float = 30.0
    patience: float = 10.0
    recheck: float = 60.0
    commit_messages: int = 1
    commit_seconds: float = 0.0
    commit_listeners: Sequence[PartitionListener] = ()
    now: Callable[[], float] = time.time
    draw: Callable[[], float] = random.random

    def pause(self, failures: int) -> float:
        """Returns the seconds to wait after so many failures in a row."""
        return _BACKOFF.pause(failures, self.draw())


DEFAULT_OPTIONS: Final = SessionOptions()


class SessionEvents:
    """The events of a session.

    Args:
        notified: Called with every event, at once.

    Attributes:
        changed: There is something to check.
        lost: The session is over.
        over: It is, or is to be left.
        suspended: The service does not answer at present.
    """

    def __init__(self, notified: Callable[[Event], None]) -> None:
        self.changed = asyncio.Event()
        self.lost = asyncio.Event()
        self.over = asyncio.Event()
        self.suspended = False
        self._on_event = notified

    def __call__(self, event: Event) -> None:
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
        if await happens(self.lost, seconds):
            raise SessionLost("the session has ended")

    def ended(self, task: asyncio.Task[None]) -> None:
        """Handles the end of work that the member cannot do without."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self.failed(error)

    def failed(self, error: BaseException) -> None:
        """Ends the session after an error in work that the member cannot do without."""
        if not isinstance(error, SessionLost):
            log.error("an error in the group member; its session ends", exc_info=error)
        self("lost")
