"""The progress of a stream, recorded as the offsets of a consumer group, which shows its lag beside others."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from queuey import ids
from queuey.errors import Conflict, GroupNotFound, OffsetConflict, QueueChanged, QueueNotFound, StoreUnavailable
from queuey.ids import FIRST, Position
from queuey.messages import OffsetChange, Queue
from queuey.spark import open_stores
from queuey.spark.options import StoreOptions
from queuey.spark.source.stream_offsets import StreamOffset
from queuey.storage import Store, bridge

log = logging.getLogger(__name__)

TRIES = 3
"""Max attempts to record an offset that another program changes at the same time."""


class GroupOffsets:
    """Records the progress of a group; never backwards, also if other programs record it.

    Nothing depends on what is recorded, so where it cannot be, that is logged and made up for the next time.
    """

    def __init__(self, options: StoreOptions, group: str) -> None:
        self._options = options
        self._group = group
        self._recorded: dict[tuple[str, int], Position] = {}

    def record(self, done: StreamOffset) -> None:
        news: dict[str, dict[int, Position]] = {}
        for (queue, number), position in done.positions.items():
            if FIRST < position != self._recorded.get((queue, number)):
                news.setdefault(queue, {})[number] = ids.preceding(position)
        if not news:
            return
        try:
            store = open_stores.opened(self._options)
            owner = open_stores.application(store, self._options)
            for name, positions in news.items():
                self._record(store, owner, name, positions)
        except StoreUnavailable as error:
            log.warning("progress of group %s could not be recorded: %s", self._group, error)
            return
        self._recorded = dict(done.positions)

    def _record(self, store: Store, owner: str, name: str, positions: Mapping[int, Position]) -> None:
        for _ in range(TRIES):
            try:
                queue = bridge.run(store.catalogue.queue(owner, name, fresh=True))
                changes = self._changes(store, queue, positions)
                if changes:
                    bridge.run(store.offsets.set_offsets(queue, self._group, changes))
            except QueueNotFound:
                return
            except (OffsetConflict, QueueChanged):
                continue
            except Conflict as error:
                log.warning("progress of group %s could not be recorded: %s", self._group, error)
            return

    def _changes(self, store: Store, queue: Queue, positions: Mapping[int, Position]) -> list[OffsetChange]:
        """Returns the positions that move forward."""
        try:
            present = {
                offset.partition: offset.position
                for offset in bridge.run(store.offsets.group_offsets(queue, self._group))
            }
        except GroupNotFound:
            present = {}
        return [
            OffsetChange(number, position, expected=present.get(number), compare=True)
            for number, position in positions.items()
            if number <= queue.partitions and position > present.get(number, FIRST)
        ]
