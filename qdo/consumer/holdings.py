"""What one session owns: taken, committed and released so that what is known of it is never mixed up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from typing import Any, TypeVar

from qdo.consumer.turns import Gathered, Turns
from qdo.coordination import Held, Session
from qdo.errors import SessionLost
from qdo.partitions import Partition

T = TypeVar("T")


class Holdings:
    """The partitions of a session, each with the version that its next commit needs.

    For each partition one thing is done at a time. When the end of a commit is not known the partition is taken again
    before the next one, which tells the version. When the end of a taking is not known the partition is ``unsure``.

    Args:
        session: Whose they are.
        taken: Told of partitions in the instant they become ours.
        gone: Told of a partition that turned out not to be ours any more.

    Attributes:
        held: What is owned. What is being released is in it no more.
        unsure: What may be owned or not.
    """

    def __init__(
        self,
        session: Session,
        taken: Callable[[dict[Partition, Held]], None],
        gone: Callable[[Partition], None],
    ) -> None:
        self.held: dict[Partition, Held] = {}
        self.unsure: set[Partition] = set()
        self._session = session
        self._taken = taken
        self._gone = gone
        self._turns = Turns()
        self._doubtful: set[Partition] = set()
        self._commits = Gathered(self._commit)
        self._releases = Gathered(self._release)
        self._over = asyncio.get_running_loop().create_future()

    def close(self) -> frozenset[Partition]:
        """Ends everything, because the session is over; returns what was held. Idempotent."""
        held = frozenset(self.held)
        self.held = {}
        self.unsure = set()
        if not self._over.done():
            self._over.set_result(None)
        return held

    async def take(self, partitions: Iterable[Partition]) -> None:
        """Takes what is free of some partitions.

        Raises:
            CoordinationLost: They are unsure now.
            SessionLost
        """
        wanted = list(partitions)
        if wanted:
            await self._in_turn(wanted, lambda: self._take(wanted))

    async def release(self, partitions: Iterable[Partition]) -> None:
        """Gives partitions up. No commit is accepted for them from the moment on when it is their turn.

        Raises:
            CoordinationLost: They may still be owned: release them again.
            SessionLost
        """
        given = dict.fromkeys(partitions)
        if given:
            await self._in_turn(given, lambda: self._releases.call(given))

    async def commit(self, offsets: Mapping[Partition, str]) -> frozenset[Partition]:
        """Records ids; returns the partitions for which nothing was recorded, because they are not ours.

        Raises:
            CoordinationLost: Each was recorded or not. It may be tried again.
            SessionLost: They were not recorded, unless the end of a call that was under way is not known.
        """
        if not offsets:
            return frozenset()
        recorded = await self._in_turn(offsets, lambda: self._commits.call(offsets))
        return frozenset(partition for partition, done in recorded.items() if not done)

    async def _in_turn(self, partitions: Collection[Partition], work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Does something when it is its turn; waits no longer than the session lasts.

        Raises:
            SessionLost: It ended meanwhile.
        """
        if not self._over.done():
            task = self._turns.run(partitions, work)
            await asyncio.wait({task, self._over}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
        raise SessionLost("the session is over")

    async def _take(self, partitions: list[Partition]) -> None:
        try:
            got = await self._session.take(partitions)
        except Exception:
            self._note_unsure(partition for partition in partitions if partition not in self.held)
            raise
        if self._over.done():
            return
        self.unsure.difference_update(partitions)
        self._doubtful.difference_update(got)
        new = {partition: held for partition, held in got.items() if partition not in self.held}
        self.held.update(got)
        if new:
            self._taken(new)

    async def _release(self, partitions: dict[Partition, None]) -> dict[Partition, None]:
        for partition in partitions:
            self.held.pop(partition, None)
            self._doubtful.discard(partition)
        # Nobody works on them any more, but until the service says so they may still be ours.
        self._note_unsure(partitions)
        await self._session.release(list(partitions))
        self.unsure.difference_update(partitions)
        return partitions

    async def _commit(self, offsets: dict[Partition, str]) -> dict[Partition, bool]:
        await self._settle_doubts([partition for partition in offsets if partition in self._doubtful])
        ours = {partition: self.held[partition] for partition in offsets if partition in self.held}
        if not ours:
            return dict.fromkeys(offsets, False)
        try:
            results = await self._session.commit([(held, offsets[partition]) for partition, held in ours.items()])
        except Exception:
            self._doubtful.update(ours)
            raise
        for partition in ours:
            self._note(partition, results.get(partition))
        return {partition: results.get(partition) is not None for partition in offsets}

    async def _settle_doubts(self, partitions: list[Partition]) -> None:
        """Takes partitions again whose version is not known, to know it."""
        if not partitions:
            return
        again = await self._session.take(partitions)
        self._doubtful.difference_update(partitions)
        for partition in partitions:
            if partition in self.held:
                self._note(partition, again.get(partition))

    def _note(self, partition: Partition, held: Held | None) -> None:
        """Notes what is held of a partition now; None: another has it, or only the version is not what we thought."""
        if self._over.done():
            return
        if held is not None:
            self.held[partition] = held
            return
        self.held.pop(partition, None)
        self.unsure.add(partition)
        self._gone(partition)

    def _note_unsure(self, partitions: Iterable[Partition]) -> None:
        if not self._over.done():
            self.unsure.update(partitions)
