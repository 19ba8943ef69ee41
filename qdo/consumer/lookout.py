"""Looks for queues and partitions that come and go."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from random import uniform

from qdo.consumer.discovery import Subscription, discover
from qdo.partitions import Queue
from queuey.client import AsyncClient, ClientError

log = logging.getLogger("qdo.consumer")

SHORTEST = 1.0
"""Seconds between looks, however often it is asked for one."""


class Lookout:
    """Looks for the queues of a subscription, now and then and when asked to.

    Args:
        client: To ask the service with.
        subscription: Which queues are wanted.
        host: What the group calls the service.
        every: Seconds between looks.
        see: Told of all queues that are there now, with the number of partitions.
    """

    def __init__(
        self,
        client: AsyncClient,
        subscription: Subscription,
        *,
        host: str,
        every: float,
        see: Callable[[Mapping[Queue, int]], None],
    ) -> None:
        self._client = client
        self._subscription = subscription
        self._host = host
        self._every = every
        self._see = see
        self._asked = asyncio.Event()
        # Those that were there last time; at first all are taken to be there, so that a missing one is told of once.
        self._present = subscription.names

    def soon(self) -> None:
        """Asks for a look, because a queue was found to be gone."""
        self._asked.set()

    async def look(self) -> None:
        """Looks once. A service that cannot say now changes nothing.

        Raises:
            ClientError: It refuses to say.
        """
        try:
            found = await discover(self._client, self._subscription)
        except ClientError as error:
            if not error.temporary:
                raise
            log.warning("cannot look for queues now: %s", error)
            return
        if missing := self._present - found.keys():
            log.warning("queues that are not there: %s", ", ".join(sorted(missing)))
        self._present = self._subscription.names & found.keys()
        self._see({Queue(self._host, self._client.application, name): count for name, count in found.items()})

    async def run(self) -> None:
        """Looks for ever."""
        while True:
            await self._pause()
            try:
                await self.look()
            except Exception:
                log.exception("cannot look for queues")

    async def _pause(self) -> None:
        await asyncio.sleep(min(SHORTEST, self._every))
        rest = max(0.0, self._every * uniform(0.9, 1.1) - SHORTEST)  # noqa: S311 - so that members look apart
        try:
            async with asyncio.timeout(rest):
                await self._asked.wait()
        except TimeoutError:
            pass
        self._asked.clear()
