"""One session of a member: its options and its events."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from qdo.errors import SessionLost
from qdo.group.callbacks import PartitionListener
from qdo.group.records import Event
from qdo.loops import wait_for_event
from queuey.client import RetryPolicy

log = logging.getLogger(__name__)

_BACKOFF = RetryPolicy(base=0.1, cap=2.0)
"""Pauses between attempts while the service does not answer."""


class SessionOptions(NamedTuple):
    """The options of a member.

    Attributes:
        settle: Seconds for which a leader collects changes before it sets the target; see
            :mod:`qdo.group.member_states`.
        grace: Seconds for which absent static members keep their partitions.
        revoke_timeout: Seconds after which a partition is released even if its revocation has not finished.
        patience: Seconds for which a commit is retried while the service does not answer, and for which leaving the
            group waits for work in progress.
        recheck: Max seconds between two checks without a reported change.
        commit_messages: Number of handled messages after which their offsets are committed.
        commit_seconds: Seconds after which they are committed if fewer messages were handled.
        commit_listeners: Notified of commits.
        now: Returns seconds since 1970.
        draw: Returns random numbers from 0 to 1.
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
        return _BACKOFF.pause(failures, self.draw())


DEFAULT_OPTIONS: Final = SessionOptions()


class SessionEvents:
    """The events of a session.

    Args:
        notified: Called at once with every event.

    Attributes:
        changed: Set when the member has to check the group again.
        lost: Set when the session has ended.
        over: Set when the session has ended, or the member has to leave it.
        suspended: Whether the service does not answer at present.
    """

    def __init__(self, notified: Callable[[Event], None]) -> None:
        self.changed = asyncio.Event()
        self.lost = asyncio.Event()
        self.over = asyncio.Event()
        self.suspended = False
        self._on_event = notified

    def record(self, event: Event) -> None:
        """Records an event and passes it on; ignores all events after ``lost``.

        Sets ``changed``, so that :meth:`qdo.group.member.GroupSession._recheck_on_change` checks the group.
        """
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
        """Sleeps for some seconds.

        Raises:
            SessionLost: The session ended meanwhile.
        """
        if await wait_for_event(self.lost, seconds):
            raise SessionLost("the session has ended")

    def end_if_failed(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.end_after_failure(error)

    def end_after_failure(self, error: BaseException) -> None:
        if not isinstance(error, SessionLost):
            log.error("error in the group member; ending its session", exc_info=error)
        self.record("lost")
