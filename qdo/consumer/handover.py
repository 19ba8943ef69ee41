"""Telling the owner of partitions what it gets, what it has to give up, and what is lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Protocol

from qdo.coordination import Held
from qdo.errors import SessionLost
from qdo.partitions import Partition

log = logging.getLogger(__name__)

LAST_WORD = 1.0
"""Seconds for which a call that was cancelled may clear up before the next one is made."""


class Owner(Protocol):
    """Who works on partitions. Everything is called in the loop of the group.

    A partition is assigned, then revoked or lost; calls for one partition do not overlap, but that ``lost`` cancels the
    others where it waits for them in vain. What a call raises is logged; an owner that fails to give a partition up is
    told that it is lost.
    """

    async def assigned(self, held: Mapping[Partition, Held]) -> None:
        """These are ours now; commits for them are accepted already while this runs."""

    async def revoke(self, partitions: frozenset[Partition]) -> None:
        """Returns when these may be released.

        Called for each partition by itself, so that one that takes long keeps no other from moving on; all that move
        together are called side by side. It is cancelled after ``revoke_timeout``.
        """

    async def lost(self, partitions: frozenset[Partition]) -> None:
        """These are somebody else's: whatever is under way is to be abandoned, and nothing can be committed."""

    def suspended(self) -> None:
        """The service does not answer: hand out nothing new."""

    def resumed(self) -> None:
        """The service answers again: go on with what is still held."""


class Handover:
    """The calls to an owner that are under way.

    Args:
        owner: Who is told.
        timeout: Seconds that a revocation may take.
    """

    def __init__(self, owner: Owner, timeout: float) -> None:
        self._owner = owner
        self._timeout = timeout
        self._told: set[Partition] = set()
        self._assigning: dict[Partition, asyncio.Task[None]] = {}
        self._calls: set[asyncio.Task[None]] = set()
        self._last_words: set[asyncio.Task[None]] = set()

    def assigned(self, held: Mapping[Partition, Held]) -> None:
        """Begins to tell the owner that it has more partitions."""

        async def tell() -> None:
            # Not before: if it is cancelled until then, the owner need not hear that anything is lost.
            self._told.update(held)
            await self._owner.assigned(held)

        task = _start("assigned", tell, self._calls)
        self._assigning.update(dict.fromkeys(held, task))

    async def revoke(self, partition: Partition) -> bool:
        """Tells the owner to give a partition up, and waits until it did.

        Returns:
            False: It took too long; the call was cancelled, and the owner is told that the partition is lost. It is
            also told so when it failed.
        """
        only = frozenset([partition])
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timeout
        assigning = self._assigning.get(partition)
        if assigning is not None and not await _ends(assigning, self._timeout):
            self._lose(only)
            return False

        async def tell() -> None:
            await self._owner.revoke(only)
            self._told -= only

        revoking = _start("revoke", tell, self._calls)
        try:
            in_time = await _ends(revoking, max(0.0, deadline - loop.time()))
        finally:
            revoking.cancel()
        self._assigning.pop(partition, None)
        if partition in self._told:
            self._lose(only, revoking)
        return in_time

    def lose(self, partition: Partition) -> None:
        """Begins to tell the owner that a partition is lost, if it was told that it has it."""
        if partition in self._told:
            self._lose(frozenset([partition]))

    async def lose_all(self) -> None:
        """Ends all calls, tells the owner that all it was told of is lost, and waits for it, but not for ever."""
        calls = list(self._calls)
        for call in calls:
            call.cancel()
        if self._told:
            self._lose(frozenset(self._told), *calls)
        if self._last_words:
            await asyncio.wait(self._last_words, timeout=max(self._timeout, LAST_WORD))

    def _lose(self, partitions: frozenset[Partition], *before: asyncio.Task[None]) -> None:
        """Begins to tell the owner that partitions are lost, when some calls have ended or had time to."""
        self._told -= partitions
        for partition in partitions:
            self._assigning.pop(partition, None)

        async def tell() -> None:
            if before:
                await asyncio.wait(before, timeout=LAST_WORD)
            await self._owner.lost(partitions)

        _start("lost", tell, self._last_words)


def _start(
    what: str, call: Callable[[], Coroutine[Any, Any, None]], running: set[asyncio.Task[None]]
) -> asyncio.Task[None]:
    """Starts a call to the owner; its failure is its own."""

    async def guarded() -> None:
        try:
            await call()
        except SessionLost as error:
            log.debug("the owner did not come to an end in %s: %s", what, error)
        except Exception:
            log.exception("the owner failed in %s", what)

    task = asyncio.create_task(guarded())
    running.add(task)
    task.add_done_callback(running.discard)
    return task


async def _ends(task: asyncio.Task[None], seconds: float) -> bool:
    """Waits for a task without cancelling it; returns whether it ended in time."""
    done, _ = await asyncio.wait({task}, timeout=seconds)
    return bool(done)
