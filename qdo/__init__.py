"""Workers that share out the partitions of Queuey's queues.

Everything that is meant for use stands here and is loaded when it is used first.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

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

_HOMES = ("errors", "partitions", "coordination", "coordination.opening", "consumer", "worker")
"""Where names come from; what is quick to load comes first."""


def __getattr__(name: str) -> object:
    """Loads a public name when it is used first."""
    if name in __all__:
        for home in _HOMES:
            module = import_module(f"{__name__}.{home}")
            if name in getattr(module, "__all__", vars(module)):
                return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
