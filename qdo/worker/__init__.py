"""A worker: a function that is called with every message of a group's partitions, and everything around it."""

from qdo.worker.failure import Delivery, Failure, StopWorker
from qdo.worker.handlers import load_context, load_handler
from qdo.worker.hooks import Middleware
from qdo.worker.loops import delivery
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
