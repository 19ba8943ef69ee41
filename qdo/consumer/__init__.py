"""The consumer: the partitions that are ours, read and committed."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qdo.consumer.batches import Batch
    from qdo.consumer.blocking import Consumer
    from qdo.consumer.consumer import AsyncConsumer
    from qdo.consumer.settings import ConsumerSettings

__all__ = ["AsyncConsumer", "Batch", "Consumer", "ConsumerSettings"]

_HOMES = {
    "AsyncConsumer": "consumer",
    "Batch": "batches",
    "Consumer": "blocking",
    "ConsumerSettings": "settings",
}


def __getattr__(name: str) -> object:
    """Loads a public name when it is used first, so that the pure parts come without the others."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
