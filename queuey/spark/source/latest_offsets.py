"""How far a stream may read now: the queues that it follows, as they are, and the horizon of each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from queuey.errors import QueueChanged, QueueNotFound
from queuey.ids import LOW_MIN, Position
from queuey.messages import Queue
from queuey.spark import open_stores
from queuey.spark.errors import OptionError
from queuey.spark.options import Assign, Pattern, Selection, SourceOptions
from queuey.spark.slices import QueuePartition
from queuey.storage import Store, bridge

TRIES = 5
"""Max attempts to read a queue that changes at the same time."""


class QueueHorizon(NamedTuple):
    """One queue.

    Attributes:
        partitions: The numbers of those that are read.
        horizon: Nothing below it will ever be added, except at ids that a client chooses.
    """

    queue: Queue
    partitions: Sequence[int]
    horizon: Position

    def queue_partitions(self) -> Iterator[QueuePartition]:
        """Gives the partitions with the queue's name."""
        return ((self.queue.name, number) for number in self.partitions)


def queue_horizons(options: SourceOptions, *, missing: bool) -> list[QueueHorizon]:
    """Returns the horizons of all queues of a read.

    Args:
        options: The read.
        missing: Leave out what is named and not there; else it is an error.

    Raises:
        QueueNotFound: A queue that is named does not exist.
        OptionError: A partition that is named does not.
    """
    store = open_stores.opened(options.store)
    owner = open_stores.application(store, options.store)
    selection = options.selection
    if isinstance(selection, Pattern):
        queues = open_stores.selected(options.store, selection)
        return [front for queue in queues if (front := _front(store, queue)) is not None]
    names = [name for name, _ in selection.partitions] if isinstance(selection, Assign) else selection.names
    found = []
    for name in sorted(names):
        try:
            front = _front(store, bridge.run(store.catalogue.queue(owner, name, fresh=True)))
        except QueueNotFound:
            front = None
        if front is not None:
            found.append(_restricted(front, selection, missing=missing))
        elif not missing:
            raise QueueNotFound(name)
    return found


def _front(store: Store, queue: Queue) -> QueueHorizon | None:
    """Returns the horizon of a queue; None: the queue is gone."""
    for _ in range(TRIES):
        try:
            horizon = bridge.run(store.bulk.horizon(queue))
            return QueueHorizon(queue, range(1, queue.partitions + 1), (horizon, LOW_MIN))
        except QueueChanged:
            try:
                queue = bridge.run(store.catalogue.queue(queue.application, queue.name, fresh=True))
            except QueueNotFound:
                return None
    raise QueueChanged(f"queue {queue.name!r} changed {TRIES} times while it was read")


def _restricted(front: QueueHorizon, selection: Selection, *, missing: bool) -> QueueHorizon:
    """Keeps the partitions that are assigned.

    Raises:
        OptionError: The queue has no such partition.
    """
    if not isinstance(selection, Assign):
        return front
    name, count = front.queue.name, front.queue.partitions
    wanted = dict(selection.partitions)[name]
    beyond = [number for number in wanted if number > count]
    if beyond and not missing:
        raise OptionError(f"Option assign names partition {beyond[0]} of queue {name!r}, which has {count}.")
    return front._replace(partitions=[number for number in wanted if number <= count])
