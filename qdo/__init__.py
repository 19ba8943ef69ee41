"""Workers that share the partitions of Queuey's queues.

Exports the public names and imports each at its first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from queuey import __version__ as __version__  # One distribution has one version.

if TYPE_CHECKING:
    from qdo.consumer.blocking import Consumer
    from qdo.consumer.buffer import Batch
    from qdo.consumer.consumer import AsyncConsumer
    from qdo.errors import (
        BadItem,
        ConsumerFailed,
        CoordinationError,
        CoordinationIncompatible,
        CoordinationLost,
        CoordinationRefused,
        CuratorError,
        GroupActive,
        HandlerError,
        InvalidArgument,
        MemberExists,
        MissingRights,
        NotOwner,
        OffsetMoved,
        PutFailed,
        QdoError,
        QueueStopped,
        SessionLost,
        StoreChanged,
        TimeLimit,
        UnknownTask,
    )
    from qdo.group.opening import open_coordinator
    from qdo.group.zookeeper.coordinator import ZooKeeperCoordinator
    from qdo.partitions import Partition, Queue
    from qdo.settings import ConsumerSettings, Retry, WorkerSettings
    from qdo.tasks import JobQueueOptions, Jobs, Task, TaskCall, TaskOptions, TaskSender
    from qdo.worker.claim_source import Claims
    from qdo.worker.failure import Failure, StopWorker
    from qdo.worker.handlers import Middleware, delivery, set_state
    from qdo.worker.runs import Delivery
    from qdo.worker.worker import Worker

__all__ = [
    "AsyncConsumer",
    "BadItem",
    "Batch",
    "Claims",
    "Consumer",
    "ConsumerFailed",
    "ConsumerSettings",
    "CoordinationError",
    "CoordinationIncompatible",
    "CoordinationLost",
    "CoordinationRefused",
    "CuratorError",
    "Delivery",
    "Failure",
    "GroupActive",
    "HandlerError",
    "InvalidArgument",
    "JobQueueOptions",
    "Jobs",
    "MemberExists",
    "Middleware",
    "MissingRights",
    "NotOwner",
    "OffsetMoved",
    "Partition",
    "PutFailed",
    "QdoError",
    "Queue",
    "QueueStopped",
    "Retry",
    "SessionLost",
    "StopWorker",
    "StoreChanged",
    "Task",
    "TaskCall",
    "TaskOptions",
    "TaskSender",
    "TimeLimit",
    "UnknownTask",
    "Worker",
    "WorkerSettings",
    "ZooKeeperCoordinator",
    "delivery",
    "open_coordinator",
    "set_state",
]

_HOMES = (
    "errors",
    "partitions",
    "group.zookeeper.coordinator",
    "group.opening",
    "settings",
    "worker.failure",
    "worker.runs",
    "worker.handlers",
    "consumer.buffer",
    "consumer.consumer",
    "consumer.blocking",
    "worker.claim_source",
    "worker.worker",
    "tasks",
)
"""The modules that define the public names, the quickest to import first."""


def __getattr__(name: str) -> object:
    for home in _HOMES if name in __all__ else ():
        module = import_module(f"{__name__}.{home}")
        if hasattr(module, name):
            return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
