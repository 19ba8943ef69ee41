"""A session as the thread that keeps it alive knows it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from qdo.coordination import Event, Listen, Member
from qdo.coordination.local.groups import GroupCounters

State = Literal["connected", "suspended", "lost"]


@dataclass(eq=False)
class SessionState:
    """A session as its session thread knows it.

    Attributes:
        session: Its key.
        where: Its group's key.
        member: What it tells of itself.
        loop: Where it is told of events.
        listen: Whom to tell.
        until: When it ends without a further sign of life.
        state: See the contract.
        seen: The counters as they were when the member last asked for what they count; gone once it was told.
    """

    session: int
    where: int
    member: Member
    loop: asyncio.AbstractEventLoop
    listen: Listen
    until: float
    state: State = "connected"
    seen: dict[str, int] = field(default_factory=dict)

    def saw(self, counters: GroupCounters, *names: str) -> None:
        """Notes counters that the member relies on; one that changed before it was told of stays the older one."""
        for name in names:
            self.seen.setdefault(name, getattr(counters, name))

    def outdated(self, counters: GroupCounters) -> bool:
        """Tells whether something has changed since the member asked; says so once."""
        changed = [name for name, value in self.seen.items() if value != getattr(counters, name)]
        for name in changed:
            del self.seen[name]
        return bool(changed)

    def report(self, event: Event) -> None:
        """Tells the member of an event; a loop that has ended has nobody to tell."""
        self.call(self.listen, event)

    def call(self, function: Callable[..., object], *arguments: object) -> None:
        """Has the member's loop call something."""
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(function, *arguments)
