"""Our side of the measure with Curator's queues: the same in Python as ``baselines/CuratorQueues.java`` does in Java.

``python -m bench.curator_side HOSTS`` reads lines and answers each with seconds: ``put PATH COUNT BYTES`` and
``consume PATH LOCK_PATH COUNT``, - for no lock path.
"""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

from kazoo.client import KazooClient

from qdo.curator import BYTES, QueueBuilder

PATIENCE = 600.0
SESSION = 60.0


def put(client: Any, path: str, count: int, size: int) -> float:  # noqa: ANN401 - kazoo has no types
    """Puts messages in the background; returns the seconds until all were stored."""
    with QueueBuilder(client, None, BYTES, path).build_queue() as queue:
        message = bytes(size)
        began = time.perf_counter()
        for _ in range(count):
            queue.put(message)
        if not queue.flush_puts(PATIENCE):
            raise TimeoutError("puts were not stored")
        return time.perf_counter() - began


def consume(client: Any, path: str, lock_path: str, count: int) -> float:  # noqa: ANN401 - kazoo has no types
    """Consumes messages one after another; returns the seconds until the queue was empty."""
    left = [count]
    done = threading.Event()

    def hear(_: bytes) -> None:
        left[0] -= 1
        if not left[0]:
            done.set()

    locked = lock_path != "-"
    builder = QueueBuilder(client, hear, BYTES, path, lock_path=lock_path if locked else None, delete_first=not locked)
    queue = builder.build_queue()
    began = time.perf_counter()
    with queue:
        if not done.wait(PATIENCE):
            raise TimeoutError("messages did not come")
        while queue.message_count():
            time.sleep(0.001)
        return time.perf_counter() - began


def main(hosts: str) -> None:
    """Does what the lines of standard input say."""
    client = KazooClient(hosts, timeout=SESSION)
    client.start(PATIENCE)
    print("ready", flush=True)
    for line in sys.stdin:
        what, path, *rest = line.split()
        if what == "put":
            count, size = map(int, rest)
            print(put(client, path, count, size), flush=True)
        else:
            print(consume(client, path, rest[0], int(rest[1])), flush=True)
    client.stop()


if __name__ == "__main__":
    main(sys.argv[1])
