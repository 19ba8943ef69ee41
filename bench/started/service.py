"""The service under measurement: prepares the data through the store, then runs ``queuey serve``."""

from __future__ import annotations

import contextlib
import hashlib
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from urllib.request import urlopen

import apsw

from bench.load.traffic import KEY
from bench.started.processes import Process, start
from queuey.model.messages import NewMessage, Queue, QueueSpec, Slice
from queuey.settings import Settings
from queuey.storage import Store, bridge
from queuey.storage.sqlite import SqliteOptions, SqliteStore, open_store
from tests.servers.served import free_port

APPLICATION = "queuey"
BASE = f"/v1/{APPLICATION}"
THREADS = Settings().threads
"""The default of the service; baselines use the same number."""
THREE_DAYS = 259_200
STORE_FILE = "queuey.sqlite3"


def prepare(directory: Path, queues: Iterable[str] = ("bench",)) -> SqliteStore:
    """Opens a new store with the application, the generator's key, and queues. The caller closes it."""
    store = open_store(directory, options=SqliteOptions(sweep_interval=None))
    create_application_and_queues(store, queues)
    return store


def create_application_and_queues(store: Store, queues: Iterable[str]) -> None:
    bridge.run(store.applications.create_application(APPLICATION))
    bridge.run(store.applications.add_key(APPLICATION, hashlib.sha256(KEY.encode()).digest()))
    for name in queues:
        bridge.run(store.catalogue.create_queue(APPLICATION, name, QueueSpec()))


def fill(store: Store, queue: Queue, texts: Sequence[str], count: int) -> None:
    """Appends ``count`` messages to partition 1, in batches of a thousand."""
    for first in range(0, count, 1000):
        size = min(1000, count - first)
        bridge.run(
            store.messages.append(queue, [NewMessage(texts[n % len(texts)], 1, THREE_DAYS) for n in range(size)])
        )


def page_starts(store: Store, queue: Queue, room: int) -> list[str]:
    """Returns every ``room``-th message id of partition 1 in order, without those of the last page of 1,000 ids."""
    message_ids: list[str] = []
    page = bridge.run(store.messages.read(queue, [Slice(1, limit=1000)]))[0]
    while page.more and page.next is not None:
        message_ids.extend(message.id for message in page.messages[::room])
        page = bridge.run(store.messages.read(queue, [Slice(1, page.next, limit=1000)]))[0]
    return message_ids


def fill_queues(directory: Path, count: int) -> None:
    """Writes ``count`` queues named ``q0000000`` and so on into a prepared, closed store, bypassing the store.

    Only the first queue is created and the others are copies of its row, because a million calls would take minutes.
    Only the calls made afterwards are measured.
    """
    with contextlib.closing(open_store(directory)) as store:
        bridge.run(store.catalogue.create_queue(APPLICATION, "q0000000", QueueSpec()))
    connection = apsw.Connection(str(directory / STORE_FILE))
    own = ("name", "uid", "qid")
    copied = ", ".join(str(row[1]) for row in connection.execute("PRAGMA table_info(queues)") if row[1] not in own)
    with connection:
        first: int = connection.execute("SELECT next_queue_id FROM clock").fetchall()[0][0]  # type: ignore[assignment]
        connection.executemany(
            f"INSERT INTO queues ({', '.join(own)}, {copied}) "
            f"SELECT ?, ?, ?, {copied} FROM queues WHERE application = ? AND name = ?",
            ((f"q{n:07d}", first + 2 * n, first + 2 * n + 1, APPLICATION, "q0000000") for n in range(1, count)),
        )
        connection.execute(
            "UPDATE clock SET next_queue_id = ?, catalogue_version = catalogue_version + 1", (first + 2 * count,)
        )
    connection.close()


def read_metric(server: Process, name: str) -> float:
    with urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=30) as answer:
        values = [line.split()[1] for line in answer.read().decode().splitlines() if line.startswith(f"{name} ")]
    return float(values[0])


def serve(
    directory: Path, *, workers: int = 1, environment: Mapping[str, str] | None = None
) -> contextlib.AbstractContextManager[Process]:
    store = {"--data": str(directory), "--sync": "full"}
    return serve_store(directory, store, workers=workers, environment=environment)


def serve_store(
    directory: Path, store: Mapping[str, str], *, workers: int = 1, environment: Mapping[str, str] | None = None
) -> contextlib.AbstractContextManager[Process]:
    """Runs ``queuey serve``.

    Args:
        directory: Directory of the log and the profile.
        store: Command-line options that choose the store.
        workers: Number of worker processes.
        environment: Additional environment variables.
    """
    port = free_port()
    options = {
        **store,
        "--profile": str(directory / "profile.toml"),
        "--port": str(port),
        "--workers": str(workers),
        "--log-level": "warning",
    }
    command = [str(Path(sys.executable).parent / "queuey"), "serve"]
    command += [text for pair in options.items() for text in pair]
    return start("queuey", command, port, directory, environment)
