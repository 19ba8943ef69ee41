"""The embedded store on a damaged file gives errors of the store or correct results, and nothing else."""

from __future__ import annotations

import contextlib
import os
import random
from pathlib import Path

import pytest

from queuey.model.errors import QueueyError, StoreIncompatible, StoreUnavailable
from queuey.model.messages import Queue
from queuey.storage import Store, bridge
from queuey.storage.sqlite import check, open_store
from queuey.storage.sqlite import connection as driver
from tests.backends import APP
from tests.contract.catalogue.test_lifecycle import CALLS
from tests.contract.samples import append_bodies, make_queue, messages_in_partition
from tests.storage.sqlite.test_faults_sqlite import SHORT_TIMEOUTS, prepare


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Makes a directory with a closed store of a few hundred pages."""
    made = prepare(tmp_path_factory.mktemp("sound") / "data", SHORT_TIMEOUTS)
    for n in range(20):
        make_queue(made.store, f"queue {n}", partitions=3)
    for n in range(30):
        append_bodies(made.store, made.queue, f"{n} \u20ac" * 40, os.urandom(300), "x" * 9000, ttl=60 + n * 1000)
    made.store.close()
    return made.directory


@pytest.mark.parametrize("seed", range(12))
def test_garbage_in_the_file(sound: Path, tmp_path: Path, seed: int) -> None:
    """With pages of garbage, calls fail with the store's errors or work as before; no other error appears."""
    rng = random.Random(seed)
    content = bytearray((sound / driver.FILE).read_bytes())
    for _ in range(rng.choice((1, 3, 20))):
        length = rng.choice((1, 16, 500, 4096))
        start = rng.randrange(0 if seed % 3 == 0 else 4096, len(content) - length)
        content[start : start + length] = rng.randbytes(length)
    (tmp_path / driver.FILE).write_bytes(content)
    try:
        store = open_store(tmp_path, options=SHORT_TIMEOUTS)
    except QueueyError as error:
        assert isinstance(error, StoreUnavailable | StoreIncompatible)  # noqa: PT017 - opening may succeed as well
        return
    try:
        for call in CALLS:
            for row in list_known_queues(store):
                try:
                    CALLS[call](store, row)
                except QueueyError:
                    continue
    finally:
        store.close()


def list_known_queues(store: Store) -> list[Queue]:
    """Returns a queue that is known to have existed, and up to three that can still be listed."""
    expected = Queue(application=APP, name="orders", uid=1, qid=1, partitions=2, read_delay=0.0, version=1)
    try:
        return [expected, *bridge.run(store.catalogue.list_queues(APP, limit=3))]
    except StoreUnavailable:
        return [expected]


def test_truncated_file(sound: Path, tmp_path: Path) -> None:
    """A truncated file is an error, not a smaller store."""
    content = (sound / driver.FILE).read_bytes()
    (tmp_path / driver.FILE).write_bytes(content[: len(content) // 8192 * 4096])

    def use() -> None:
        with contextlib.closing(open_store(tmp_path, options=SHORT_TIMEOUTS)) as store:
            for row in bridge.run(store.catalogue.list_queues(APP)):
                messages_in_partition(store, row)
            bridge.run(store.ping())

    with pytest.raises(StoreUnavailable):
        use()


def test_check_finds_damage(sound: Path, tmp_path: Path) -> None:
    """The integrity check passes a sound file and reports damage in another."""
    assert check(sound) == []
    content = bytearray((sound / driver.FILE).read_bytes())
    content[40_960:49_152] = os.urandom(8192)
    (tmp_path / driver.FILE).write_bytes(content)
    try:
        complaints = check(tmp_path)
    except StoreUnavailable:
        return
    assert complaints != []
