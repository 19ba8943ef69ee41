"""A worker: a function that is called with every message of a group's partitions, and everything around it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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

_HOMES = {
    "Delivery": "failure",
    "Failure": "failure",
    "Middleware": "hooks",
    "Retry": "retry",
    "StopWorker": "failure",
    "Worker": "worker",
    "WorkerSettings": "settings",
    "delivery": "loops",
    "load_context": "handlers",
    "load_handler": "handlers",
}


def __getattr__(name: str) -> object:
    """Loads a public name when it is used first: a handler's process needs few of them, and starts sooner so."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
