"""The coordination services of the experiments: how each is reached and broken."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from tests.faults.webs import Store
from tests.harness.nemesis import inflict

Deed = Callable[[str, float], None]
"""Does something to a slot, or to all, for a number of seconds; returns when it is undone."""


class Service(Protocol):
    """An empty coordination service.

    Attributes:
        session_timeout: Session timeout of a worker in seconds.
    """

    session_timeout: float

    @property
    def recovery(self) -> float:
        """Seconds after a fault until its effects are over."""

    @property
    def apart(self) -> Collection[str]:
        """The slots whose workers reach it by a network of their own."""

    @property
    def faults(self) -> Mapping[str, Deed]:
        """The faults of the service and of its network."""

    def url(self, slot: str = "") -> str:
        """Returns the argument of ``open_coordinator`` for a slot, or for others; empty for groups of the service."""

    def expire(self, session: str) -> None:
        """Ends a session."""

    def restore(self) -> None:
        """Waits until everything is as at the beginning."""


class ServiceGroups:
    """Groups of the service whose messages the workers handle: its faults are those of the service's process.

    Args:
        store: The store of the service, if its nodes have faults too, one at a time.
        session_timeout: Session timeout in seconds.
    """

    apart = ()

    def __init__(self, store: Store | None = None, session_timeout: float = 3.0) -> None:
        self.session_timeout = session_timeout
        # A restarted node is slow for a while, because it receives the writes that it missed.
        self.recovery = 6.0 if store is None else 16.0
        self._store = store
        self._one = threading.Lock()
        kinds = {} if store is None else {"node-kill": "kill", "node-pause": "pause"}
        self.faults: Mapping[str, Deed] = {name: self._breaking(kind) for name, kind in kinds.items()}

    def url(self, slot: str = "") -> str:
        return ""

    def expire(self, session: str) -> None:
        """Not used: the service ends no session before its time."""

    def restore(self) -> None:
        if self._store is not None:
            self._store.settled()

    def _breaking(self, kind: str) -> Deed:
        def break_one(_slot: str, seconds: float) -> None:
            assert self._store is not None
            with self._one:
                inflict(kind, [random.choice(list(self._store.nodes.values()))], seconds)

        return break_one
