"""The coordination services of the experiments: how to reach them, and how each is broken."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Protocol

from tests.qdo.contract.local import writing

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
        """Returns what ``open_coordinator`` takes, in a slot or elsewhere."""

    def expire(self, session: str) -> None:
        """Ends a session."""

    def restore(self) -> None:
        """Waits until everything is as in the beginning."""


class LocalService:
    """A file."""

    recovery = 2.0
    apart = ()

    def __init__(self, path: Path, session_timeout: float = 1.5) -> None:
        self.session_timeout = session_timeout
        self.deeds: Mapping[str, Deed] = {"cut": self._cut}
        self._path = path

    def url(self, slot: str = "") -> str:
        """See the protocol."""
        return f"local://{self._path}"

    def expire(self, session: str) -> None:
        """Lets its time be over."""
        with writing(self._path) as tx:
            tx.execute("UPDATE sessions SET expires = 0 WHERE id = ?", (int(session),))

    def restore(self) -> None:
        """Nothing is broken."""

    def _cut(self, slot: str, seconds: float) -> None:
        """Holds the lock of those who write, as a process does that is stopped in the middle of a transaction."""
        with writing(self._path):
            threading.Event().wait(seconds)
