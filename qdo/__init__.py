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
    "TimeLimit",
    "Worker",
    "WorkerSettings",
    "delivery",
    "open_coordinator",
]

_HOMES = {
    "qdo.consumer": ("AsyncConsumer", "Batch", "Consumer", "ConsumerSettings"),
    "qdo.coordination": ("Coordinator",),
    "qdo.coordination.opening": ("open_coordinator",),
    "qdo.partitions": ("Partition", "Queue"),
    "qdo.worker": (
        "Delivery",
        "Failure",
        "Middleware",
        "Retry",
        "StopWorker",
        "Worker",
        "WorkerSettings",
        "delivery",
    ),
}
"""Where names come from that are no errors."""


def __getattr__(name: str) -> object:
    """Loads a public name when it is used first."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = next((home for home, names in _HOMES.items() if name in names), "qdo.errors")
    return getattr(import_module(home), name)
