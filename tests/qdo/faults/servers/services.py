"""The coordination services of the experiments: how to reach them, and how each is broken."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Protocol

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
    """Groups of the service whose messages the workers handle: what breaks them is done to its process."""

    session_timeout = 3.0
    recovery = 6.0
    apart = ()
    deeds: Mapping[str, Deed] = {}

    def url(self, slot: str = "") -> str:
        """See the protocol: there is no other service."""
        return ""

    def expire(self, session: str) -> None:
        """Is not asked for: the service ends no session before its time."""

    def restore(self) -> None:
        """Nothing of its own is broken."""
