"""A process that writes as fast as it can and reports what was acknowledged, until it is killed.

Run as ``python -m tests.acceptance.crashes.crash_writer DIRECTORY NAME SEED``. After ``ready`` each line is a JSON list
of an acknowledged call: ``["append", [[partition, id, body], ...]]``, ``["put", [[partition, id, body]]]`` or
``["delete", [[partition, id]]]``. A complete line was acknowledged.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from queuey.model import ids
from queuey.model.errors import StoreBusy
from queuey.model.messages import NewMessage, Queue
from queuey.storage import Store, bridge
from queuey.storage.sqlite import open_store

APP = "acme"
QUEUE = "orders"
PARTITIONS = 3
THREADS = 3


def print_report(kind: str, places: list[Any]) -> None:
    """Writes one line in one piece, straight to the pipe."""
    os.write(1, (json.dumps([kind, places]) + "\n").encode())


def write(store: Store, queue: Queue, name: str, seed: int) -> None:
    """Changes messages at random without end; reports appends after the call, puts and deletes before and after it."""
    rng = random.Random(seed)
    own: list[tuple[int, str, str]] = []
    for number in itertools.count():
        kind = rng.choices(("append", "put", "delete"), (8, 1, 1))[0] if own else "append"
        if kind == "append":
            size = rng.choice((1, 1, 1, 5, 200))
            items = [NewMessage(f"{name}:{number}:{n}/{size}", rng.randint(1, PARTITIONS), 86_400) for n in range(size)]
            try:
                appended = bridge.run(store.messages.append(queue, items))
            except StoreBusy:  # The other process is stopped within its transaction.
                continue
            places = [
                (item.partition, ids.to_hex(place), str(item.body)) for item, place in zip(items, appended, strict=True)
            ]
            own = [*own[-50:], *places] if size == 1 else own
            print_report("append", places)
            continue
        partition, text, _ = own.pop(rng.randrange(len(own)))
        place = (partition, ids.parse_id(text))
        if kind == "put":
            body = f"{name}:{number}:put"
            print_report("putting", [[partition, text, body]])
            with suppress(StoreBusy):
                bridge.run(store.messages.put(queue, [place], NewMessage(body, partition, 86_400)))
                print_report("put", [[partition, text, body]])
        else:
            print_report("deleting", [[partition, text]])
            with suppress(StoreBusy):
                bridge.run(store.messages.delete(queue, [place]))
                print_report("delete", [[partition, text]])


def main(directory: str, name: str, seed: str) -> None:
    store = open_store(Path(directory))
    queue = bridge.run(store.catalogue.queue(APP, QUEUE))
    os.write(1, b'["ready", []]\n')
    threads = [
        threading.Thread(target=write, args=(store, queue, f"{name}.{n}", int(seed) * THREADS + n))
        for n in range(THREADS)
    ]
    for thread in threads:
        thread.start()


if __name__ == "__main__":
    main(*sys.argv[1:])
