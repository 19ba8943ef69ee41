"""Workers that share out the partitions of Queuey's queues.

Everything that is meant for use stands here and is loaded when it is used first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdo.lazy_names import lazily

__version__ = "0.1.0"

if TYPE_CHECKING:
    from qdo.consumer import AsyncConsumer, Batch, Consumer, ConsumerSettings
    from qdo.coordination import Coordinator
    from qdo.coordination.opening import open_coordinator
    from qdo.errors import (
        CoordinationError,
        CoordinationIncompatible,
        CoordinationLost,
        CoordinationRefused,
        GroupActive,
        HandlerError,
        InvalidArgument,
        MemberExists,
        NotOwner,
        OffsetMoved,
        QdoError,
        SessionLost,
        StoreChanged,
        TimeLimit,
    )
    from qdo.partitions import Partition, Queue
    from qdo.worker import Delivery, Failure, Middleware, Retry, StopWorker, Worker, WorkerSettings, delivery

__all__ = [
    "AsyncConsumer",
    "Batch",
    "Consumer",
    "ConsumerSettings",
    "CoordinationError",
    "CoordinationIncompatible",
    "CoordinationLost",
    "CoordinationRefused",
    "Coordinator",
    "Delivery",
    "Failure",
    "GroupActive",
    "HandlerError",
    "InvalidArgument",
    "MemberExists",
    "Middleware",
    "NotOwner",
    "OffsetMoved",
    "Partition",
    "QdoError",
    "Queue",
    "Retry",
    "SessionLost",
    "StopWorker",
    "StoreChanged",
    "TimeLimit",
    "Worker",
    "WorkerSettings",
    "delivery",
    "open_coordinator",
]

__getattr__ = lazily(
    __name__, __all__, ("errors", "partitions", "coordination", "coordination.opening", "consumer", "worker")
)
