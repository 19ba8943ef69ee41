"""Messages of the partitions that a group shares out, of which the group's offsets say how far they are handled."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from functools import partial
from typing import Any

from qdo.consumer.consumer import AsyncConsumer
from qdo.consumer.partition_listener import Callbacks
from qdo.errors import InvalidArgument
from qdo.partitions import Partition
from qdo.tasks import happens
from qdo.worker.dispatcher import Dispatcher
from qdo.worker.failure import ExitCode
from qdo.worker.offset_committer import OffsetCommitter
from qdo.worker.rights import require_rights
from qdo.worker.sources import REFUSED_PAUSE, Handling, end_if_handlers_hang, note_refusal
from queuey.client import ClientError

logger = logging.getLogger("qdo.worker")

_HAND_BACK = 0.8
"""Ratio of the time for a revocation in which running messages may be finished; the rest is for the commit."""
_RECORDING_SECONDS = 5.0
"""Timeout to record progress when the worker ends, after the time for finishing, in seconds."""
_LEEWAY_SECONDS = 1.0
"""Min seconds beyond both, so that the worker releases the partition, and not the consumer at the end of its time."""
_SHOWN = 5
"""Max partitions that a line of the log names."""


class OffsetSource:
    """Handles the messages of a consumer's partitions, and commits everything before the first unfinished one."""

    def __init__(self, consumer: AsyncConsumer, handling: Handling) -> None:
        if consumer.settings.commit_every is not None:
            raise InvalidArgument(
                "a worker commits handled messages, so its consumer must not commit by itself: leave out commit_every"
            )
        self._consumer = consumer
        self._handling = handling
        self._settings = handling.settings
        self._metrics = handling.metrics
        consumer.attach(Callbacks(self._assigned, self._revoked, self._lost, self._suspended, self._resumed))
        if not self._settings.processes:
            consumer.coordinator.outlast = self._settings.stalled_after
        self._progress = OffsetCommitter(consumer, self._settings, self._metrics)
        self.dispatcher = Dispatcher(consumer, self._progress, handling)
        self._drained: float | None = None
        """When the messages in flight are to be finished, by the loop's clock, once it drains."""
        self._finished = True
        """False after a loss of messages in flight or of offsets, until partitions are assigned again."""
        self._joined = False

    async def start(self) -> None:
        await self._consumer.start(partial(require_rights, self._consumer, self._settings))
        member = self._consumer.member
        self._joined = True
        logger.info("joined the group as %s", member, extra={"member": member})

    async def take(self) -> bool:
        self.dispatcher.dispatch()
        most = self.dispatcher.room
        if not most:
            return False
        try:
            batches = await self._consumer.poll(most, None, skip=self.dispatcher.busy)
        except ClientError as error:
            logger.error("the service refuses reads, retrying: %s", error)  # noqa: TRY400 - says it all
            await happens(self._handling.stop_requested, REFUSED_PAUSE)
            return True
        for partition, messages in batches:
            self.dispatcher.feed(partition, messages)
        if self._consumer.closing:
            self._handling.stop(ExitCode.ENDED)
        return True

    def wake(self) -> None:
        self._consumer.wake()

    def beside(self) -> list[Coroutine[Any, Any, None]]:
        running = [self._progress.run(), self._note_progress()]
        return [*running, self._measure_lag()] if self._handling.lag_shown else running

    async def drain(self, patience: float) -> bool:
        self._drained = asyncio.get_running_loop().time() + patience
        unrecorded = self._progress.dropped
        self.dispatcher.stop()
        await self._consumer.close(patience + _RECORDING_SECONDS + _LEEWAY_SECONDS)
        return self._finished and self._progress.dropped == unrecorded

    async def until_ended(self, deadline: float) -> None:
        await self.dispatcher.until_ended(deadline)

    async def close(self) -> None:
        self._progress.close()
        await self._consumer.close()
        if self._joined:
            logger.info("left the group", extra={"member": self._consumer.member})

    async def close_all(self) -> None:
        await self._consumer.coordinator.close()
        await self._consumer.client.close()

    async def _note_progress(self) -> None:
        while True:
            await asyncio.sleep(self._settings.commit_seconds)
            self.dispatcher.note_progress()
            end_if_handlers_hang(self._handling)
            self._metrics.owned = len(self._consumer.assignment)
            self._metrics.unseen = len(self._consumer.unseen)
            note_refusal(self._handling, self._consumer.refused)

    async def _measure_lag(self) -> None:
        while True:
            await asyncio.sleep(self._settings.lag_seconds)
            try:
                self._metrics.lag = await self._consumer.lag()
            except Exception as error:  # noqa: BLE001 - a figure for people must not end the worker
                logger.warning("the lag could not be measured: %s", error)

    # Changes of the assignment

    def _assigned(self, partitions: frozenset[Partition]) -> None:
        self._finished = self._finished or self._drained is None
        self._moved("assigned", partitions)

    async def _revoked(self, partitions: frozenset[Partition]) -> None:
        """Finishes the running messages and commits them, so that they are not handled again."""
        begun, seconds = asyncio.get_running_loop().time(), self._consumer.settings.revoke_timeout
        finishing, recording = begun + seconds * _HAND_BACK, begun + seconds * (1 + _HAND_BACK) / 2
        if self._drained is not None:
            finishing, recording = self._drained, max(begun, self._drained) + _RECORDING_SECONDS
        if not await self.dispatcher.close(partitions, finishing) and self._drained is not None:
            self._finished = False
        await self._progress.flush(partitions, recording)
        self._progress.forget(partitions)
        self._moved("revoked", partitions)

    def _lost(self, partitions: frozenset[Partition]) -> None:
        unrecorded = self._progress.dropped
        in_flight = self.dispatcher.discard(partitions)
        self._progress.forget(partitions)
        if in_flight or self._progress.dropped > unrecorded:
            self._finished = False
        self._moved("lost", partitions)

    def _suspended(self) -> None:
        logger.warning("the coordination service cannot be reached: no more messages are started")
        self.dispatcher.halt()

    def _resumed(self) -> None:
        logger.info("the coordination service can be reached again")
        self.dispatcher.resume()

    def _moved(self, how: str, partitions: frozenset[Partition]) -> None:
        names = sorted(map(str, partitions))
        shown = ", ".join(names[:_SHOWN]) + ", …" * (len(names) > _SHOWN)
        text = "%d partition%s %s: %s"
        logger.info(text, len(names), "s" * (len(names) != 1), how, shown, extra={"partitions": names})
        self._metrics.moved(how, len(partitions))
        if how == "assigned":
            self._metrics.owned = len(self._consumer.assignment)
        else:
            # Each ends independently, so the remaining ones are counted by the next _note_progress.
            self._metrics.lag = {one: lag for one, lag in self._metrics.lag.items() if one not in partitions}
