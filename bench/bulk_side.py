"""Child process that scans one partition with ``scan_arrow`` or ``scan``, or loads messages.

``python -m bench.bulk_side arrow|messages URL`` scans partition 1 of the queue ``bench``;
``python -m bench.bulk_side load URL COUNT`` loads COUNT new messages into it. Prints rows per second and CPU
microseconds per row, measured after a warm-up.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

from bench.baselines.arrow_rows import time_second_run
from bench.load.traffic import bodies
from bench.started import service
from queuey import ids
from queuey.messages import Message, Queue, Slice
from queuey.storage import Store, bridge
from queuey.storage.cassandra import open_store
from queuey.storage.opening import retry_until_available

LIMIT = 10_000


def arrow(store: Store, queue: Queue) -> Callable[[], int]:
    return lambda: sum(batch.num_rows for batch in bridge.iterate(store.bulk.scan_arrow(queue, Slice(1, limit=LIMIT))))


def messages(store: Store, queue: Queue) -> Callable[[], int]:
    return lambda: sum(map(len, bridge.iterate(store.bulk.scan(queue, Slice(1, limit=LIMIT)))))


def make_messages(count: int, *, seconds: int = 3600) -> list[Message]:
    """Returns messages whose ids are spread evenly over the last ``seconds``."""
    now, low_id_bits, texts = ids.now_ticks(), ids.random_low(), bodies(1000)
    step = seconds * ids.TICKS_PER_SECOND // count
    first_tick, expires_tick = now - count * step, now + service.THREE_DAYS * ids.TICKS_PER_SECOND
    return [Message(first_tick + n * step, low_id_bits, 1, expires_tick, texts[n % 1000]) for n in range(count)]


def load(store: Store, queue: Queue, count: int) -> Callable[[], int]:
    return lambda: bridge.run(store.bulk.load(queue, make_messages(count)))


def main() -> None:
    action, url, *numbers = sys.argv[1:]
    store = open_store(url)
    queue = retry_until_available(lambda: bridge.run(store.catalogue.queue(service.APPLICATION, "bench")), 30)
    print(json.dumps(time_second_run(globals()[action](store, queue, *map(int, numbers)))))
    store.close()


if __name__ == "__main__":
    main()
