"""Messages and rows for tests of the reader."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from queuey.messages import NewMessage, Queue, QueueSpec
from queuey.storage import Store, bridge
from tests.backends import APP
from tests.spark.reader.micro_batches import Row

DAY = 86_400
Options = Callable[..., dict[str, str]]
"""Makes options of a read."""


def create(store: Store, name: str = "a", *, partitions: int = 1, ttl: int | None = None) -> Queue:
    return bridge.run(store.catalogue.create_queue(APP, name, QueueSpec(partitions=partitions, ttl=ttl)))[0]


def send(
    store: Store, name: str, texts: Sequence[str], partition: int = 1, *, ttl: int = DAY, delay: float = 0
) -> None:
    bridge.run(
        store.messages.append(
            bridge.run(store.catalogue.queue(APP, name, fresh=True)),
            [NewMessage(text, partition, ttl, delay=delay) for text in texts],
        )
    )


def values(rows: list[Row] | None) -> list[str]:
    assert rows is not None
    return [row["value"].decode() for row in rows]


def make_texts(count: int, first: int = 0) -> list[str]:
    return [f"m{number}" for number in range(first, first + count)]
