"""Queuey's side of the comparison with Curator's queues; ``baselines/CuratorQueues.java`` is the other side.

``python -m bench.curator_side HOSTS`` reads commands from standard input and answers each with a number of seconds:
``put PATH COUNT BYTES`` and ``consume PATH LOCK_PATH COUNT`` (``-`` for no lock path).
"""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

from kazoo.client import KazooClient

from qdo.curator import BYTES, QueueBuilder

TIMEOUT_SECONDS = 600.0
SESSION_TIMEOUT = 60.0


def put(client: Any, path: str, count: int, size: int) -> float:  # noqa: ANN401 - kazoo has no types
    """Puts messages in the background; returns the seconds until all of them were stored."""
    with QueueBuilder(client, None, BYTES, path).build_queue() as queue:
        message = bytes(size)
        began = time.perf_counter()
        for _ in range(count):
            queue.put(message)
        if not queue.flush_puts(TIMEOUT_SECONDS):
            raise TimeoutError("the puts were not stored in time")
        return time.perf_counter() - began


def consume(client: Any, path: str, lock_path: str, count: int) -> float:  # noqa: ANN401 - kazoo has no types
    """Consumes messages one by one; returns the seconds until the queue was empty."""
    remaining = [count]
    all_received = threading.Event()

    def receive(_: bytes) -> None:
        remaining[0] -= 1
        if not remaining[0]:
            all_received.set()

    locked = lock_path != "-"
    builder = QueueBuilder(
        client, receive, BYTES, path, lock_path=lock_path if locked else None, delete_first=not locked
    )
    queue = builder.build_queue()
    began = time.perf_counter()
    with queue:
        if not all_received.wait(TIMEOUT_SECONDS):
            raise TimeoutError("the messages were not received in time")
        while queue.message_count():
            time.sleep(0.001)
        return time.perf_counter() - began


def main(hosts: str) -> None:
    client = KazooClient(hosts, timeout=SESSION_TIMEOUT)
    client.start(TIMEOUT_SECONDS)
    print("ready", flush=True)
    for line in sys.stdin:
        command, path, *rest = line.split()
        if command == "put":
            count, size = map(int, rest)
            print(put(client, path, count, size), flush=True)
        else:
            print(consume(client, path, rest[0], int(rest[1])), flush=True)
    client.stop()


if __name__ == "__main__":
    main(sys.argv[1])
