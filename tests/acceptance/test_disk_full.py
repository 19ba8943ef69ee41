"""A process whose disk is full continues once there is space again."""

from __future__ import annotations

import multiprocessing
import resource
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from queuey.model.errors import StoreUnavailable
from queuey.model.messages import NewMessage, Queue, QueueSpec, Slice
from queuey.storage import bridge
from queuey.storage.sqlite import SqliteOptions, SqliteStore, check, open_store
from tests.waiting import PATIENCE_SECONDS

APP = "acme"
FILE_BYTES_PER_ROUND = 400_000
"""Max bytes of a file while the disk is full."""


def limit_file_size(size: int) -> None:
    """Limits the size of files that this process writes, in bytes; larger writes fail."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))


def fill(store: SqliteStore, queue: Queue, prefix: str) -> tuple[list[str], list[str]]:
    """Appends until it fails; returns the acknowledged bodies, and the last one if its outcome is unknown."""
    kept: list[str] = []
    for number in range(10_000):
        body = f"{prefix}{number}:" + "x" * 2000
        try:
            bridge.run(store.messages.append(queue, [NewMessage(body, 1, 3600)]))
        except StoreUnavailable as error:
            return kept, [body] if error.outcome == "unknown" else []
        kept.append(body)
    return kept, []


def fill_and_recover(directory: Path) -> tuple[list[str], list[str], list[str]]:
    """Fills the disk, fails to write more, makes room and continues, all with one store object.

    Returns:
        The acknowledged bodies, those whose outcome is unknown, and those read in the end.
    """
    store = open_store(directory, options=SqliteOptions(sweep_interval=None))
    bridge.run(store.applications.create_application(APP))
    queue, _ = bridge.run(store.catalogue.create_queue(APP, "orders", QueueSpec()))
    kept: list[str] = []
    unknown: list[str] = []
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for round_ in range(3):
        limit_file_size(FILE_BYTES_PER_ROUND * (round_ + 1))
        for attempt in range(3):
            more, doubtful = fill(store, queue, f"{round_}.{attempt}.")
            kept += more
            unknown += doubtful
            (page,) = bridge.run(store.messages.read(queue, [Slice(partition=1, limit=10_000)]))
            assert len(page.messages) >= len(kept)
        limit_file_size(hard)
        kept.append(f"between {round_}")
        bridge.run(store.messages.append(queue, [NewMessage(kept[-1], 1, 3600)]))
        bridge.run(store.ping())
    (page,) = bridge.run(store.messages.read(queue, [Slice(partition=1, limit=10_000, max_bytes=1 << 30)]))
    store.close()
    return kept, unknown, [str(message.body) for message in page.messages]


def test_full_disk(tmp_path: Path) -> None:
    """What was acknowledged is there, what was refused is not, readers go on, and space is all it takes to recover."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        kept, unknown, stored = pool.submit(fill_and_recover, tmp_path / "data").result(PATIENCE_SECONDS)
    assert len(kept) > 50
    assert [body for body in kept if body not in stored] == []
    assert set(stored) - set(kept) <= set(unknown)
    assert len(stored) == len(set(stored))
    assert check(tmp_path / "data") == []
