"""Commits offsets: after a number of messages, after an interval, and on request."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping

from qdo.consumer.consumer import AsyncConsumer
from qdo.coordination import HandlingNote
from qdo.errors import CoordinationLost, InvalidArgument, NotOwner, QdoError
from qdo.partitions import Partition
from qdo.settings import WorkerSettings
from qdo.worker.metrics import WorkerMetrics
from queuey.client import RetryPolicy

logger = logging.getLogger("qdo.worker")

_PAUSES = RetryPolicy(base=0.1, cap=2.0)


class OffsetCommitter:
    """Collects the offsets of handled messages and commits them, one commit at a time."""

    def __init__(self, consumer: AsyncConsumer, settings: WorkerSettings, metrics: WorkerMetrics) -> None:
        self._consumer = consumer
        self._settings = settings
        self._metrics = metrics
        self._pending: dict[Partition, str] = {}
        self._messages = 0
        self._due = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._one = asyncio.Lock()
        self.dropped = 0
        """Ends that could not be recorded."""

    def note(self, partition: Partition, end: str, messages: int) -> None:
        """Notes how far a partition is handled, and the number of messages since the last note."""
        self._pending[partition] = end
        self._messages += messages
        if self._messages >= self._settings.commit_messages:
            self._due.set()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._settings.commit_seconds, self._due.set)

    async def begin(self, partition: Partition, note: HandlingNote | None) -> None:
        """Records a note of the messages that begin, together with the offset.

        A partition has one note. A next owner that began before a message that was given up would find only the note of
        a later one.

        Raises:
            NotOwner: The partition is not this member's.
            CoordinationLost, SessionLost
        """
        try:
            await self._consumer.note(partition, note, self._pending.get(partition))
        except InvalidArgument:
            await self._try([partition])  # drops the end, and says so
            await self._consumer.note(partition, note)

    def forget(self, partitions: Collection[Partition]) -> None:
        """Records nothing more for partitions until they are noted again."""
        for partition in partitions:
            self.dropped += self._pending.pop(partition, None) is not None

    async def run(self) -> None:
        """Commits whenever it is due; never ends."""
        failures = 0
        while True:
            await self._due.wait()
            failures = 0 if await self._try() else failures + 1
            if failures:
                await asyncio.sleep(_PAUSES.pause(failures, 1.0))
                self._due.set()

    async def flush(self, partitions: Collection[Partition] | None, deadline: float) -> None:
        """Commits the noted offsets of partitions, or of all (None), until a deadline of the loop's clock."""
        failures = 0
        try:
            async with asyncio.timeout_at(deadline):
                while not await self._try(partitions):
                    failures += 1
                    await asyncio.sleep(_PAUSES.pause(failures, 1.0))
        except TimeoutError:
            logger.error("offsets could not be committed in time; some messages will be handled again")  # noqa: TRY400 - no news

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    async def _try(self, partitions: Collection[Partition] | None = None) -> bool:
        """Commits once; returns False if it has to be tried again."""
        async with self._one:
            if partitions is None:
                self._reset_timer()
                partitions = self._pending
            return await self._commit({each: self._pending[each] for each in partitions if each in self._pending})

    async def _commit(self, offsets: Mapping[Partition, str]) -> bool:
        if not offsets:
            return True
        try:
            await self._consumer.commit(offsets)
        except NotOwner as error:
            # Not what was noted meanwhile: the partition may have come back.
            self.forget((error.partitions or offsets.keys()) & set(self._unchanged(offsets)))
            logger.warning("offsets were not committed, because another worker owns the partition now: %s", error)
        except CoordinationLost as error:
            self._metrics.note("commit_failures")
            logger.warning("offsets were not committed and will be retried: %s", error)
            return False
        except QdoError as error:
            if isinstance(error, InvalidArgument) and len(offsets) > 1:  # none was recorded, and only some are wrong
                return all([await self._commit({each: end}) for each, end in offsets.items()])
            self._metrics.note("commit_failures")
            self.forget(self._unchanged(offsets))
            logger.error("offsets were not committed: %s", error)  # noqa: TRY400 - says it all
            return True
        self._metrics.note("commits")
        for partition in self._unchanged(offsets):
            del self._pending[partition]
        return True

    def _unchanged(self, offsets: Mapping[Partition, str]) -> list[Partition]:
        return [partition for partition, end in offsets.items() if self._pending.get(partition) == end]

    def _reset_timer(self) -> None:
        self._due.clear()
        self._messages = 0
        self.close()
        self._timer = None
