"""A store with queues for a test, as the test and as Spark see it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from queuey.model import ids
from queuey.model.errors import ApplicationExists
from queuey.model.ids import Position
from queuey.model.messages import Message, Meta, NewMessage, Queue, QueueSpec, Slice
from queuey.spark import open_stores
from queuey.spark.options import StoreOptions
from queuey.storage import Store, bridge
from tests.backends import APP, SqliteLocation, prepare_sqlite

TTL = 3600
METAS = (None, Meta(content_type="text/csv"), Meta(headers=(("a", "1"), ("b", ""))), Meta(json=True))
"""Metadata for bodies of :meth:`Kept.fill`, in turn."""


class Kept:
    """A store, and the options with which Spark opens it.

    Args:
        store: The store, open in this process.
        options: The same store as options of Spark.
    """

    def __init__(self, store: Store, options: Mapping[str, str]) -> None:
        self.store = store
        self.options = dict(options)

    @property
    def store_options(self) -> StoreOptions:
        return StoreOptions(settings=tuple(sorted(self.options.items())), application=APP)

    def queue(self, name: str = "orders", **fields: Any) -> Queue:  # noqa: ANN401 - the fields of a QueueSpec
        return bridge.run(self.store.catalogue.create_queue(APP, name, QueueSpec(**fields)))[0]

    def fill(self, queue: Queue, count: int, *, ttl: int = TTL) -> list[Message]:
        """Posts messages of all kinds to all partitions in turn, and returns them once they can be read."""
        bodies = [f"text {n} ä" if n % 2 else b"\x00\xff" + str(n).encode() for n in range(count)]
        bodies = ["[1]" if METAS[n % len(METAS)] == Meta(json=True) else body for n, body in enumerate(bodies)]
        items = [
            NewMessage(body=body, partition=n % queue.partitions + 1, ttl=ttl, meta=METAS[n % len(METAS)])
            for n, body in enumerate(bodies)
        ]
        return self.post(queue, items)

    def post(self, queue: Queue, items: Sequence[NewMessage]) -> list[Message]:
        """Posts messages and returns them, as stored, once they can be read."""
        positions = [
            position
            for first in range(0, len(items), 1000)
            for position in bridge.run(self.store.messages.append(queue, items[first : first + 1000]))
        ]
        self.settle(queue, max(positions))
        return bridge.run(
            self.store.messages.fetch(queue, [(item.partition, at) for item, at in zip(items, positions, strict=True)])
        )

    def settle(self, queue: Queue, position: Position | None = None) -> None:
        """Waits until a position, by default the present time, is below the horizon of readers.

        Without a position there is no wait on SQLite. Fails after 300 s.
        """
        ticks = ids.now_ticks() if position is None else position[0]
        until = time.monotonic() + 300
        while bridge.run(self.store.bulk.horizon(queue)) <= ticks and (
            position is not None or self.store.name != "sqlite"
        ):
            assert time.monotonic() < until, "the horizon stands still"
            time.sleep(0.02)

    def settle_and_read(self, name: str) -> list[Message]:
        """Waits until all messages of a queue can be read, and returns them."""
        queue = bridge.run(self.store.catalogue.queue(APP, name, fresh=True))
        newest = [info.newest for info in bridge.run(self.store.messages.inspect(queue))[1] if info.newest is not None]
        if newest:
            self.settle(queue, max(newest))
        return self.all(queue)

    def all(self, queue: Queue) -> list[Message]:
        """Returns all messages of a queue, by partition and position, including delayed and unsettled ones."""
        return [
            message
            for partition in range(1, queue.partitions + 1)
            for messages in bridge.iterate(self.store.bulk.scan(queue, Slice(partition, keeps_read_delay=False)))
            for message in messages
        ]


@contextlib.contextmanager
def keep(directory: Path) -> Iterator[Kept]:
    """Opens the store on SQLite in a directory, for this process and Spark; a new one has one application."""
    data = directory / "data"
    location = SqliteLocation(data) if data.exists() else prepare_sqlite(data)
    with contextlib.closing(location.open()) as store:
        with contextlib.suppress(ApplicationExists):
            bridge.run(store.applications.create_application(APP))
        yield Kept(store, {"data": str(data)})
        open_stores.close_all()


def open_patiently(options: Mapping[str, str]) -> Store:
    from queuey import settings  # noqa: PLC0415 - loaded on use
    from queuey.app import opening  # noqa: PLC0415 - loaded on use

    store = opening.open_store(settings.load(dict(options), {}).settings, jobs=False)
    opening.retry_until_available(lambda: bridge.run(store.applications.application_names()), 60)
    return store


def quiet(text: str) -> None:
    """Ignores the messages of a job."""
