"""A worker: a function that is called with every message of a group's partitions, and everything around it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdo.lazy_names import lazily

if TYPE_CHECKING:
    from qdo.worker.executors.run_handler import delivery
    from qdo.worker.failure import Delivery, Failure, StopWorker
    from qdo.worker.handlers import load_context, load_handler
    from qdo.worker.middleware import Middleware
    from qdo.worker.retry import Retry
    from qdo.worker.settings import WorkerSettings
    from qdo.worker.worker import Worker

__all__ = [
    "Delivery",
    "Failure",
    "Middleware",
    "Retry",
    "StopWorker",
    "Worker",
    "WorkerSettings",
    "delivery",
    "load_context",
    "load_handler",
]

# A handler's process needs few of them, and starts sooner so.
__getattr__ = lazily(
    __name__, __all__, ("failure", "retry", "settings", "middleware", "executors.run_handler", "handlers", "worker")
)
