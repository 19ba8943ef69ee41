"""The states of a queue object, from its making to its end."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Literal, TypeAlias

from qdo.errors import QueueStopped

State: TypeAlias = Literal["latent", "started", "suspended", "lost", "closed"]
Event: TypeAlias = Literal["start", "suspended", "reconnected", "lost", "close"]

TRANSITIONS: Mapping[tuple[State, Event], State] = {
    ("latent", "start"): "started",
    ("latent", "close"): "closed",
    ("started", "suspended"): "suspended",
    ("started", "lost"): "lost",
    ("started", "close"): "closed",
    ("suspended", "reconnected"): "started",
    ("suspended", "lost"): "lost",
    ("suspended", "close"): "closed",
    ("lost", "close"): "closed",
}
"""Other events change nothing."""

REASONS: Mapping[State, str] = {
    "latent": "was not started; call start() first",
    "lost": "has lost its session of ZooKeeper; close it, and build and start another",
    "closed": "is closed; build and start another",
}

log = logging.getLogger("qdo.curator")


class Lifecycle:
    """The state of a queue object, and what changes it.

    ::

        latent ──start──► started ◄─reconnected── suspended
                            │  └───suspended────────►  │
                            └────────► lost ◄──────────┘          close: from any state to closed

    ==========  ============================  ======================================================================
    state       begins when                   what holds in it
    ==========  ============================  ======================================================================
    latent      the object is made            nothing is done yet; puts are refused
    started     ``start()`` is called, or     messages are taken and puts are sent
                the connection is back
                within the session
    suspended   the connection breaks         no message is begun; messages in hand are finished, and their ends wait
                                              for the connection; foreground puts wait for it; background puts that
                                              were sent and not answered are reported, others go later
    lost        the session has ended         final: nothing is taken or put any more, the ends of messages in hand are
                                              refused, and so other consumers take them again
    closed      ``close()`` is called         final: puts are refused, no message is begun, those in hand are finished
    ==========  ============================  ======================================================================

    Kazoo begins another session by itself when one has ended. A queue object never uses it.

    Args:
        name: Of the queue, for errors.
        heard: Called with ``suspended``, ``reconnected`` and ``lost`` in the thread that heard of it, which is kazoo's:
            it must not wait for ZooKeeper.
    """

    def __init__(self, name: str, heard: Callable[[Event], None] | None = None) -> None:
        self.changed = threading.Condition()
        self._name = name
        self._heard = heard
        self._state: State = "latent"
        self._calls: list[Callable[[], None]] = []

    @property
    def state(self) -> State:
        return self._state

    def happened(self, event: Event) -> bool:
        """Changes the state and wakes waiting threads; returns False if the event changes nothing."""
        with self.changed:
            after = TRANSITIONS.get((self._state, event))
            if after is None:
                return False
            self._state = after
            self.changed.notify_all()
        if self._heard is not None and event not in {"start", "close"}:
            try:
                self._heard(event)
            except Exception:
                log.exception("the function that was to hear of %r failed", event)
        return True

    def hear(self, state: str) -> None:
        """Called with a state of kazoo."""
        events: Mapping[str, Event] = {"CONNECTED": "reconnected", "SUSPENDED": "suspended", "LOST": "lost"}
        self.happened(events[state])

    def require(self) -> None:
        """Raises QueueStopped unless the queue is started or suspended."""
        if self._state in REASONS:
            raise QueueStopped(f"queue {self._name} {REASONS[self._state]}")
