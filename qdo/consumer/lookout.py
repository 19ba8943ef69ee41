"""Looks for queues and partitions that come and go, on behalf of all members, while its own member leads.

::

    idle ──look_up(wanted)──► looking ──found──► resting ──time over, asked, or wanted more──► looking
      ▲                         │ ▲ │               │
      │                         │ └─┴─failed, later─┘
      └───────────look_up(nothing): it leads no more┘
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from random import uniform

from qdo.consumer.discovery import discover
from qdo.partitions import Queue
from qdo.subscriptions import Subscription
from queuey.client import AsyncClient, ClientError, RetryPolicy

log = logging.getLogger("qdo.consumer")

SHORTEST = 1.0
"""Seconds between looks, however often it is asked for one."""
_BACKOFF = RetryPolicy(base=0.25, cap=5.0)
"""How long to pause between attempts while the service cannot say."""


class Lookout:
    """Looks for the queues that the members of a group want, now and then and when asked to.

    Args:
        client: To ask the service with.
        own: What its own member wants. Of others only what they want of the same application and service is looked up.
        every: Seconds between looks.
        changed: Told that other queues were found.
        failed: Told that the service refuses to say.
    """

    def __init__(
        self,
        client: AsyncClient,
        own: Subscription,
        *,
        every: float,
        changed: Callable[[], None],
        failed: Callable[[Exception], None],
    ) -> None:
        self._client = client
        self._own = own
        self._every = every
        self._changed = changed
        self._failed = failed
        self._wanted: Collection[Subscription] = ()
        self._found: Mapping[Queue, int] | None = None
        self._missing: frozenset[str] = frozenset()
        self._foreign: set[tuple[str, str]] = set()
        self._asked = asyncio.Event()
        self._more = asyncio.Event()
        self._leads = asyncio.Event()

    @property
    def found(self) -> Mapping[Queue, int] | None:
        """The queues that were there at the last look, with their partitions; None: it has not looked yet."""
        return self._found

    def look_up(self, wanted: Collection[Subscription]) -> None:
        """Says what members want; nothing: the member does not lead."""
        if set(wanted) == set(self._wanted):
            return
        self._wanted = wanted
        if wanted:
            self._leads.set()
            self._more.set()
            self._asked.set()
        else:
            self._leads.clear()
            self._found = None

    def soon(self) -> None:
        """Asks for a look, because a queue was found to be gone."""
        self._asked.set()

    async def run(self) -> None:
        """Looks for ever, while it is to."""
        failures = 0
        while True:
            await self._leads.wait()
            self._asked.clear()
            self._more.clear()
            try:
                await self._look()
                failures = 0
            except ClientError as error:
                failures += 1
                if not error.temporary:
                    self._failed(error)
                level = logging.DEBUG if failures > 1 else logging.WARNING
                log.log(level, "cannot look for queues now, trying on: %s", error)
                await asyncio.sleep(min(_BACKOFF.pause(failures, uniform(0.5, 1.0)), self._every))  # noqa: S311 - spreads load
            except Exception:
                log.exception("cannot look for queues")
                await self._pause()
            else:
                await self._pause()

    async def _look(self) -> None:
        """Looks once.

        Raises:
            ClientError: The service cannot say.
        """
        wanted = self._own.with_all(self._wanted)
        foreign = {(one.host, one.application) for one in self._wanted} - {(wanted.host, wanted.application)}
        if foreign - self._foreign:
            log.error(
                "members work for %s, and this one, which leads, for %s/%s: they get nothing; all members of a group "
                "must call the service the same (--host) and be of one application",
                ", ".join("/".join(each) for each in sorted(foreign)),
                wanted.host,
                wanted.application,
            )
        self._foreign = foreign
        counts = await discover(self._client, wanted)
        if not self._leads.is_set():
            return
        missing = wanted.names - counts.keys()
        if missing - self._missing:
            log.warning("queues that are not there: %s", ", ".join(sorted(missing - self._missing)))
        self._missing = missing
        found = {Queue(wanted.host, wanted.application, name): count for name, count in counts.items()}
        if found != self._found:
            self._found = found
            self._changed()

    async def _pause(self) -> None:
        """Rests until the next look: short if a queue is gone, not at all if other queues are wanted."""
        shortest = min(SHORTEST, self._every)
        rest = max(0.0, self._every * uniform(0.9, 1.1) - shortest)  # noqa: S311 - so that leaders look apart
        for event, seconds in ((self._more, shortest), (self._asked, rest)):
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await event.wait()
            if self._more.is_set():
                return
