"""Child process that sends messages one by one: ``python bench/send_side.py SIDE PLACE SYNC``.

Each line of standard input is a number of messages to send. For each line it prints the elapsed seconds and the CPU
seconds of this process, as JSON. A side imports only what it measures, so the script also runs with another checkout.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from hashlib import sha256

from queuey.storage import bridge

BODY = "x" * 200
Send = Callable[[], object]
"""Sends one message. Each function that returns this prepares its side first."""


def connect_over_http(url: str, sync: str) -> Send:
    from queuey.client import Client  # noqa: PLC0415 - each side imports its own

    client = Client(url, application="queuey")
    client.create_queue("bench")
    return lambda: client.send("bench", BODY)


def open_embedded(file: str, sync: str) -> Send:
    from queuey import embedded  # noqa: PLC0415 - as above

    client = embedded.open(file, settings={"sync": sync})
    client.create_queue("bench")
    return lambda: client.send("bench", BODY)


def open_store_side(directory: str, sync: str) -> Send:
    """Appends to the store with an idempotency key, as the service does for a send."""
    from queuey.messages import NewMessage, PostKey, QueueSpec  # noqa: PLC0415 - as above
    from queuey.storage.sqlite import SqliteOptions, open_store  # noqa: PLC0415

    opened = open_store(directory, options=SqliteOptions(sync=sync))  # type: ignore[arg-type] # it is one of the two
    bridge.run(opened.applications.create_application("queuey"))
    queue, _ = bridge.run(opened.catalogue.create_queue("queuey", "bench", QueueSpec()))

    def send() -> object:
        key = PostKey(os.urandom(16).hex(), sha256(BODY.encode()).digest(), 86_400)
        return bridge.run(opened.keyed_posts.append_once(queue, [NewMessage(BODY, 1, 259_200)], key))

    return send


def open_insert_side(file: str, sync: str) -> Send:
    """Inserts rows on the calling thread, one per transaction. Creates the table, so ``file`` must be new."""
    import apsw  # noqa: PLC0415 - as above

    connection = apsw.Connection(file)
    for pragma in ("journal_mode = WAL", f"synchronous = {sync}"):
        connection.execute(f"PRAGMA {pragma}").fetchall()
    connection.execute("CREATE TABLE messages (id INTEGER PRIMARY KEY, body TEXT)")
    return lambda: connection.execute("INSERT INTO messages (body) VALUES (?)", (BODY,))


SIDES: dict[str, Callable[[str, str], Send]] = {
    "over_http": connect_over_http,
    "embedded": open_embedded,
    "store": open_store_side,
    "insert": open_insert_side,
}


def main(side: str, place: str, sync: str) -> None:
    send = SIDES[side](place, sync)
    for line in sys.stdin:
        began, cpu = time.perf_counter(), time.process_time()
        for _ in range(int(line)):
            send()
        print(json.dumps([time.perf_counter() - began, time.process_time() - cpu]), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
