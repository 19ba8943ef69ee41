"""The queues of Apache Curator in ZooKeeper, from Python. Programs in both languages can share a queue.

Needs kazoo (the extra ``zookeeper``). Public names are loaded at their first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from qdo.group.opening import need_zookeeper

if TYPE_CHECKING:
    from qdo.curator.options import BYTES, TEXT, Serializer
    from qdo.curator.queues import (
        DistributedDelayQueue,
        DistributedIdQueue,
        DistributedPriorityQueue,
        DistributedQueue,
        QueueBuilder,
    )
    from qdo.curator.simple import SimpleDistributedQueue

__all__ = [
    "BYTES",
    "TEXT",
    "DistributedDelayQueue",
    "DistributedIdQueue",
    "DistributedPriorityQueue",
    "DistributedQueue",
    "QueueBuilder",
    "Serializer",
    "SimpleDistributedQueue",
]

_MODULES = ("options", "queues", "simple")


def __getattr__(name: str) -> object:
    if name in __all__:
        need_zookeeper()
        for home in _MODULES:
            module = import_module(f"{__name__}.{home}")
            if hasattr(module, name):
                return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
