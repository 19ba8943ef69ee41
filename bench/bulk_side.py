"""One process that reads a queue's partition by ``scan_arrow`` or ``scan``, or loads messages, and nothing else.

``python -m bench.bulk_side arrow|messages URL`` reads partition 1 of the queue ``bench``; ``… load URL COUNT``
loads fresh messages into it. Prints rows a second and microseconds of its CPU a row, once warm.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

from bench.baselines.arrow_rows import timed
from bench.load.traffic import bodies
from bench.started import service
from queuey import ids
from queuey.messages import Message, Queue, Slice
from queuey.storage import Store, bridge
from queuey.storage.cassandra import open_store
from queuey.storage.opening import patiently

LIMIT = 10_000


def arrow(store: Store, queue: Queue) -> Callable[[], int]:
    """Returns what reads the partition as Arrow batches and counts its rows."""
    return lambda: sum(batch.num_rows for batch in bridge.iterate(store.bulk.scan_arrow(queue, Slice(1, limit=LIMIT))))


def messages(store: Store, queue: Queue) -> Callable[[], int]:
    """Returns what reads the partition as messages and counts them."""
    return lambda: sum(map(len, bridge.iterate(store.bulk.scan(queue, Slice(1, limit=LIMIT)))))


def made(count: int, *, seconds: int = 3600) -> list[Message]:
    """Messages of the last hour, as far apart as they can be."""
    now, low, texts = ids.now_ticks(), ids.random_low(), bodies(1000)
    step = seconds * ids.TICKS_PER_SECOND // count
    first, ends = now - count * step, now + service.THREE_DAYS * ids.TICKS_PER_SECOND
    return [Message(first + n * step, low, 1, ends, texts[n % 1000]) for n in range(count)]


def load(store: Store, queue: Queue, count: int) -> Callable[[], int]:
    """Returns what loads so many messages and counts them."""
    return lambda: bridge.run(store.bulk.load(queue, made(count)))


def main() -> None:
    """Does what the command line says."""
    action, url, *numbers = sys.argv[1:]
    store = open_store(url)
    queue = patiently(lambda: bridge.run(store.catalogue.queue(service.APPLICATION, "bench")), 30)
    print(json.dumps(timed(globals()[action](store, queue, *map(int, numbers)))))
    store.close()


if __name__ == "__main__":
    main()
