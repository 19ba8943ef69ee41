"""The states of a queue object."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Literal, TypeAlias

from qdo.errors import QueueStopped
from qdo.group.zookeeper.tree import State as LinkState
from qdo.loops import Signal

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
"""State and event -> next state. Other events change nothing."""

UNUSABLE_REASONS: Mapping[State, str] = {
    "latent": "was not started; call start() first",
    "lost": "has lost its session of ZooKeeper; close it, and build and start another",
    "closed": "is closed; build and start another",
}

log = logging.getLogger("qdo.curator")


class Lifecycle:
    """The state of a queue object, and its transitions.

    ::

        latent ──start──► started ◄─reconnected── suspended
                            │  └───suspended────────►  │
                            └────────► lost ◄──────────┘          close: from any state to closed

    ==========  ============================  ======================================================================
    state       begins when                   behaviour
    ==========  ============================  ======================================================================
    latent      the object is created         idle; puts are refused
    started     ``start()`` is called, or     messages are taken and puts are sent
                the connection is back
                within the session
    suspended   the connection breaks         no message is begun; messages in hand are handled, and removed once the
                                              connection is back; foreground puts wait for it; background puts that
                                              were sent and not answered are reported as failed, others are sent later
    lost        the session has ended         final: nothing is taken or put; messages in hand cannot be removed, so
                                              other consumers take them again
    closed      ``close()`` is called         final: puts are refused, no message is begun, those in hand are finished
    ==========  ============================  ======================================================================

    Kazoo begins a new session by itself when one has ended. A queue object never uses the new session.

    Args:
        name: Name of the queue, for errors.
        on_event: Called with ``suspended``, ``reconnected`` and ``lost`` in the event loop, so it must not block.

    Attributes:
        state: The present state.
        changed: Notified when the state changes, or anything else that tasks of the queue wait for.
    """

    def __init__(self, name: str, on_event: Callable[[Event], None] | None = None) -> None:
        self.changed = Signal()
        self._name = name
        self._on_event = on_event
        self.state: State = "latent"

    def handle(self, event: Event) -> bool:
        """Applies an event, in the event loop; returns False if it changes nothing.

        Notifies tasks of a new state, and calls ``on_event`` unless the event is ``start`` or ``close``.
        """
        after = TRANSITIONS.get((self.state, event))
        if after is None:
            return False
        self.state = after
        self.changed.notify()
        if self._on_event is not None and event not in {"start", "close"}:
            try:
                self._on_event(event)
            except Exception:
                log.exception("the function on_state failed for %r", event)
        return True

    def on_link_state(self, state: LinkState) -> None:
        events: Mapping[str, Event] = {"connected": "reconnected", "suspended": "suspended", "lost": "lost"}
        self.handle(events[state])

    def require_usable(self) -> None:
        if self.state in UNUSABLE_REASONS:
            raise QueueStopped(f"queue {self._name} {UNUSABLE_REASONS[self.state]}")
