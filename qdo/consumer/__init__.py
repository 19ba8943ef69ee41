"""The consumer: the partitions that are ours, read and committed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdo.lazy_names import lazily

if TYPE_CHECKING:
    from qdo.consumer.batches import Batch
    from qdo.consumer.blocking import Consumer
    from qdo.consumer.consumer import AsyncConsumer
    from qdo.consumer.settings import ConsumerSettings

__all__ = ["AsyncConsumer", "Batch", "Consumer", "ConsumerSettings"]

__getattr__ = lazily(__name__, __all__, ("batches", "settings", "consumer", "blocking"))
