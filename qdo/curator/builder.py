"""The builder of the four queues."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from qdo.curator.options import QueueOptions
from qdo.curator.queues import (
    DistributedDelayQueue,
    DistributedIdQueue,
    DistributedPriorityQueue,
    DistributedQueue,
)
from qdo.errors import InvalidArgument

T = TypeVar("T")


@dataclass(frozen=True)
class QueueBuilder(QueueOptions[T]):
    """Builds queues; the attributes are those of :class:`qdo.curator.options.QueueOptions`.

    ::

        from kazoo.client import KazooClient
        from qdo.curator import BYTES, QueueBuilder

        client = KazooClient("127.0.0.1:2181")
        client.start()
        producer = QueueBuilder(client, None, BYTES, "/queues/orders", put_in_background=False).build_queue()
        producer.start()
        producer.put(b"an apple")
        producer.close()
        client.stop()
        client.close()

    Raises:
        InvalidArgument: A value cannot be used.
    """

    def build_queue(self) -> DistributedQueue[T]:
        """Returns a queue in the order of puts, not started."""
        return DistributedQueue(self)

    def build_id_queue(self) -> DistributedIdQueue[T]:
        """Returns a queue whose messages can be removed by an id, not started."""
        return DistributedIdQueue(self)

    def build_priority_queue(self, min_items_before_refresh: int = 0) -> DistributedPriorityQueue[T]:
        """Returns a queue whose messages have priorities, not started.

        Args:
            min_items_before_refresh: How many nodes are taken from one list of the queue before it is listed again for
                nodes of a smaller number; it is listed only if something has changed. 0: a hundredth of the nodes that
                were listed, at least 1.

        Raises:
            InvalidArgument: It is negative.
        """
        if min_items_before_refresh < 0:
            raise InvalidArgument(f"min_items_before_refresh is 0 or more, not {min_items_before_refresh}")
        return DistributedPriorityQueue(self, min_items_before_refresh)

    def build_delay_queue(self) -> DistributedDelayQueue[T]:
        """Returns a queue whose messages can be taken from an instant on, not started."""
        return DistributedDelayQueue(self)
