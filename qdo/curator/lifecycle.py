"""The states of a queue object, from its making to its end."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Literal, TypeAlias

from qdo.coordination.tree import State as LinkState
from qdo.errors import QueueStopped
from qdo.tasks import Signal

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
        heard: Called with ``suspended``, ``reconnected`` and ``lost`` in the event loop: it must not wait.

    Attributes:
        state: The present one.
        changed: The state has changed, or something else that work of the queue waits for.
    """

    def __init__(self, name: str, heard: Callable[[Event], None] | None = None) -> None:
        self.changed = Signal()
        self._name = name
        self._heard = heard
        self.state: State = "latent"

    def happened(self, event: Event) -> bool:
        """Changes the state, in the event loop; returns False if the event changes nothing."""
        after = TRANSITIONS.get((self.state, event))
        if after is None:
            return False
        self.state = after
        self.changed.notify()
        if self._heard is not None and event not in {"start", "close"}:
            try:
                self._heard(event)
            except Exception:
                log.exception("the function that was to hear of %r failed", event)
        return True

    def hear(self, state: LinkState) -> None:
        """Called with a state of the link."""
        events: Mapping[str, Event] = {"connected": "reconnected", "suspended": "suspended", "lost": "lost"}
        self.happened(events[state])

    def require(self) -> None:
        """Raises QueueStopped unless the queue is started or suspended."""
        if self.state in REASONS:
            raise QueueStopped(f"queue {self._name} {REASONS[self.state]}")
