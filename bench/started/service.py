"""The service under measurement: its data is prepared through the store, then ``queuey serve`` runs as users run it."""

from __future__ import annotations

import contextlib
import hashlib
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import apsw

from bench.load.traffic import KEY
from bench.started.processes import ROOT, Process, Scheme, start
from queuey import ids
from queuey.messages import NewMessage, Queue, QueueSpec, Slice
from queuey.settings import Settings
from queuey.storage import Store, bridge
from queuey.storage.sqlite import SqliteOptions, SqliteStore, open_store
from tests.servers.served import free_port

TLS = ROOT / "tests" / "acceptance" / "tls"
APPLICATION = "queuey"
BASE = f"/v1/{APPLICATION}"
THREADS = Settings().threads
"""As users run it; baselines get as many."""
THREE_DAYS = 259_200
FILE = "queuey.sqlite3"


def prepare(directory: Path, queues: Iterable[str] = ("bench",), *, sweeps: bool = False) -> SqliteStore:
    """Opens a new store with the application, the key of the generator, and queues; the caller closes it."""
    store = open_store(directory, options=SqliteOptions(sweep_interval=1.0 if sweeps else None))
    furnish(store, queues)
    return store


def furnish(store: Store, queues: Iterable[str]) -> None:
    """Gives a new store the application, the key of the generator, and queues."""
    bridge.run(store.applications.create_application(APPLICATION))
    bridge.run(store.applications.add_key(APPLICATION, hashlib.sha256(KEY.encode()).digest()))
    for name in queues:
        bridge.run(store.catalogue.create_queue(APPLICATION, name, QueueSpec()))


def fill(store: Store, queue: Queue, texts: Sequence[str], count: int, *, ttl: int = THREE_DAYS) -> None:
    """Appends ``count`` messages to partition 1, a thousand at a time."""
    for at in range(0, count, 1000):
        size = min(1000, count - at)
        bridge.run(store.messages.append(queue, [NewMessage(texts[n % len(texts)], 1, ttl) for n in range(size)]))


def places(store: Store, queue: Queue, room: int) -> list[str]:
    """Returns ids of partition 1 in their order, ``room`` messages apart, the last ones left out."""
    found: list[str] = []
    page = bridge.run(store.messages.read(queue, [Slice(1, limit=1000)]))[0]
    while page.more and page.next is not None:
        found.extend(message.id for message in page.messages[::room])
        page = bridge.run(store.messages.read(queue, [Slice(1, page.next, limit=1000)]))[0]
    return found


def expired_left(directory: Path) -> int:
    """Returns how many expired messages still lie in the file."""
    connection = apsw.Connection(str(directory / FILE), flags=apsw.SQLITE_OPEN_READONLY)
    sql = "SELECT count(*) FROM messages WHERE expires <= ?"
    left: int = connection.execute(sql, (ids.now_ticks(),)).fetchall()[0][0]  # type: ignore[assignment]
    connection.close()
    return left


def fill_queues(directory: Path, count: int) -> None:
    """Writes ``count`` queues ``q0000000`` and so on into a prepared, closed store, past its contract.

    Only the first is created; the others are its copies. A million calls would take minutes; what is measured are the
    calls made afterwards.
    """
    with contextlib.closing(open_store(directory)) as store:
        bridge.run(store.catalogue.create_queue(APPLICATION, "q0000000", QueueSpec()))
    connection = apsw.Connection(str(directory / FILE))
    drawn = ("name", "uid", "qid")
    alike = ", ".join(str(row[1]) for row in connection.execute("PRAGMA table_info(queues)") if row[1] not in drawn)
    with connection:
        first: int = connection.execute("SELECT next_queue_id FROM clock").fetchall()[0][0]  # type: ignore[assignment]
        connection.executemany(
            f"INSERT INTO queues ({', '.join(drawn)}, {alike}) "
            f"SELECT ?, ?, ?, {alike} FROM queues WHERE application = ? AND name = ?",
            ((f"q{n:07d}", first + 2 * n, first + 2 * n + 1, APPLICATION, "q0000000") for n in range(1, count)),
        )
        connection.execute(
            "UPDATE clock SET next_queue_id = ?, catalogue_version = catalogue_version + 1", (first + 2 * count,)
        )
    connection.close()


def serve(
    directory: Path,
    *,
    threads: int = THREADS,
    workers: int = 1,
    sync: str = "full",
    environment: Mapping[str, str] | None = None,
    scheme: Scheme = "http",
) -> contextlib.AbstractContextManager[Process]:
    """Runs ``queuey serve`` on prepared data."""
    store = {"--data": str(directory), "--sync": sync}
    return run(directory, store, threads=threads, workers=workers, environment=environment, scheme=scheme)


def run(
    directory: Path,
    store: Mapping[str, str],
    *,
    threads: int,
    workers: int,
    environment: Mapping[str, str] | None = None,
    scheme: Scheme = "http",
) -> contextlib.AbstractContextManager[Process]:
    """Runs ``queuey serve``.

    Args:
        directory: Where its log and its profile go.
        store: Options that say which store it has.
        threads: Per worker.
        workers: How many.
        environment: Variables to set.
        scheme: https has a certificate of the tests.
    """
    port = free_port()
    options = {
        **store,
        "--profile": str(directory / "profile.toml"),
        "--port": str(port),
        "--threads": str(threads),
        "--workers": str(workers),
        "--log-level": "warning",
    }
    if scheme == "https":
        options |= {"--tls-cert": str(TLS / "cert.pem"), "--tls-key": str(TLS / "key.pem")}
    command = [str(Path(sys.executable).parent / "queuey"), "serve"]
    command += [text for pair in options.items() for text in pair]
    return start("queuey", command, port, directory, environment, scheme=scheme)
