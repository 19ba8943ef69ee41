"""Records the progress of a stream as offsets of a consumer group, so that its lag is visible as for other groups."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from queuey.model import ids
from queuey.model.errors import Conflict, GroupNotFound, OffsetConflict, QueueChanged, QueueNotFound, QueueyError
from queuey.model.ids import FIRST, Position
from queuey.model.messages import OffsetChange, Queue
from queuey.spark import open_stores
from queuey.spark.options import StoreOptions
from queuey.spark.source.stream_offsets import StreamOffset
from queuey.storage import Store, bridge

log = logging.getLogger(__name__)

MAX_TRIES = 3
"""Max attempts to record an offset that another program changes at the same time."""


class GroupOffsets:
    """Records the offsets of a group. Offsets never move backwards, even if other programs set them.

    The stream does not read these offsets, so a failure is only logged, and the next record makes up for it.
    """

    def __init__(self, options: StoreOptions, group: str) -> None:
        self._options = options
        self._group = group
        self._recorded: dict[tuple[str, int], Position] = {}

    def record(self, done: StreamOffset) -> None:
        moved: dict[str, dict[int, Position]] = {}
        for (queue, number), position in done.positions.items():
            if FIRST < position != self._recorded.get((queue, number)):
                moved.setdefault(queue, {})[number] = ids.preceding(position)
        if not moved:
            return
        try:
            store = open_stores.opened(self._options)
            owner = open_stores.application(store, self._options)
            for name, positions in moved.items():
                self._record(store, owner, name, positions)
        except QueueyError as error:
            log.warning("progress of group %s could not be recorded: %s", self._group, error)
            return
        self._recorded = dict(done.positions)

    def _record(self, store: Store, owner: str, name: str, positions: Mapping[int, Position]) -> None:
        """Records offsets of one queue, unless it was deleted; tries ``MAX_TRIES`` times after concurrent changes.

        Logs any other conflict.
        """
        for _ in range(MAX_TRIES):
            try:
                queue = bridge.run(store.catalogue.queue(owner, name, fresh=True))
                changes = self._find_advances(store, queue, positions)
                if changes:
                    bridge.run(store.offsets.set_offsets(queue, self._group, changes))
            except QueueNotFound:
                return
            except (OffsetConflict, QueueChanged):
                continue
            except Conflict as error:
                log.warning("progress of group %s could not be recorded: %s", self._group, error)
            return

    def _find_advances(self, store: Store, queue: Queue, positions: Mapping[int, Position]) -> list[OffsetChange]:
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
