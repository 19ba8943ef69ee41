"""The coordination services of the experiments: how to reach them, and how each is broken."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from tests.faults.webs import Store
from tests.harness.nemesis import hit

Deed = Callable[[str, float], None]
"""Does something to a slot, or to all, for so many seconds; returns when it is undone."""


class Service(Protocol):
    """A coordination service with nothing in it.

    Attributes:
        session_timeout: Seconds of a worker's session.
    """

    session_timeout: float

    @property
    def recovery(self) -> float:
        """Seconds after a fault until its effects are over."""

    @property
    def apart(self) -> Collection[str]:
        """The slots whose workers reach it by a network of their own."""

    @property
    def deeds(self) -> Mapping[str, Deed]:
        """What can be done to it, and to how it is reached."""

    def url(self, slot: str = "") -> str:
        """Returns what ``open_coordinator`` takes, in a slot or elsewhere; empty: groups are those of the service."""

    def expire(self, session: str) -> None:
        """Ends a session."""

    def restore(self) -> None:
        """Waits until everything is as in the beginning."""


class ServiceGroups:
    """Groups of the service whose messages the workers handle: what breaks them is done to its process.

    Args:
        store: What the service runs on, if its nodes are broken, too: one at a time.
        session_timeout: Seconds.
    """

    apart = ()

    def __init__(self, store: Store | None = None, session_timeout: float = 3.0) -> None:
        self.session_timeout = session_timeout
        # A node that has started again is slow for a while: it gets what it has missed.
        self.recovery = 6.0 if store is None else 16.0
        self._store = store
        self._one = threading.Lock()
        kinds = {} if store is None else {"node-kill": "kill", "node-pause": "pause"}
        self.deeds: Mapping[str, Deed] = {name: self._breaking(kind) for name, kind in kinds.items()}

    def url(self, slot: str = "") -> str:
        """See the protocol: there is no other service."""
        return ""

    def expire(self, session: str) -> None:
        """Is not asked for: the service ends no session before its time."""

    def restore(self) -> None:
        """See the protocol."""
        if self._store is not None:
            self._store.settled()

    def _breaking(self, kind: str) -> Deed:
        def break_one(_slot: str, seconds: float) -> None:
            assert self._store is not None
            with self._one:
                hit(kind, [random.choice(list(self._store.nodes.values()))], seconds)

        return break_one
