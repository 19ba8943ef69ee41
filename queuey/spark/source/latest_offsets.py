"""The present horizons of the queues of a stream: the positions up to which it may read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from queuey.model.errors import QueueChanged, QueueNotFound
from queuey.model.ids import LOW_MIN, Position
from queuey.model.messages import Queue
from queuey.spark import open_stores
from queuey.spark.errors import OptionError
from queuey.spark.options import Assign, Pattern, Selection, SourceOptions
from queuey.spark.slices import QueuePartition
from queuey.storage import Store, bridge

MAX_TRIES = 5


class QueueHorizon(NamedTuple):
    """The horizon of one queue.

    Attributes:
        partitions: Numbers of the partitions to read.
        horizon: No message will be added below it, except with ids chosen by clients.
    """

    queue: Queue
    partitions: Sequence[int]
    horizon: Position

    def queue_partitions(self) -> Iterator[QueuePartition]:
        return ((self.queue.name, number) for number in self.partitions)


def read_queue_horizons(options: SourceOptions, *, skip_missing: bool) -> list[QueueHorizon]:
    """Returns the horizons of all queues of a read, sorted by name.

    Args:
        options: Options of the read.
        skip_missing: Skip named queues and partitions that do not exist, instead of raising an error.

    Raises:
        QueueNotFound: A named queue does not exist.
        OptionError: A named partition does not exist.
    """
    store = open_stores.opened(options.store)
    owner = open_stores.application(store, options.store)
    selection = options.selection
    if isinstance(selection, Pattern):
        queues = open_stores.find_selected_queues(options.store, selection)
        return [front for queue in queues if (front := _read_horizon(store, queue)) is not None]
    names = [name for name, _ in selection.partitions] if isinstance(selection, Assign) else selection.names
    horizons = []
    for name in sorted(names):
        try:
            front = _read_horizon(store, bridge.run(store.catalogue.queue(owner, name, fresh=True)))
        except QueueNotFound:
            front = None
        if front is not None:
            horizons.append(_keep_assigned(front, selection, skip_missing=skip_missing))
        elif not skip_missing:
            raise QueueNotFound(name)
    return horizons


def _read_horizon(store: Store, queue: Queue) -> QueueHorizon | None:
    for _ in range(MAX_TRIES):
        try:
            horizon = bridge.run(store.bulk.horizon(queue))
            return QueueHorizon(queue, range(1, queue.partitions + 1), (horizon, LOW_MIN))
        except QueueChanged:
            try:
                queue = bridge.run(store.catalogue.queue(queue.application, queue.name, fresh=True))
            except QueueNotFound:
                return None
    raise QueueChanged(f"queue {queue.name!r} changed {MAX_TRIES} times while it was read")


def _keep_assigned(horizon: QueueHorizon, selection: Selection, *, skip_missing: bool) -> QueueHorizon:
    """Returns the horizon with only the assigned partitions; unchanged unless the selection is an :class:`Assign`.

    Raises:
        OptionError: The queue does not have an assigned partition, and ``skip_missing`` is false.
    """
    if not isinstance(selection, Assign):
        return horizon
    name, count = horizon.queue.name, horizon.queue.partitions
    assigned = dict(selection.partitions)[name]
    beyond = [number for number in assigned if number > count]
    if beyond and not skip_missing:
        raise OptionError(f"Option assign names partition {beyond[0]} of queue {name!r}, which has {count}.")
    return horizon._replace(partitions=[number for number in assigned if number <= count])
