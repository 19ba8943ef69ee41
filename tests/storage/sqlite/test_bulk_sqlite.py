"""The embedded store's implementation of pipeline calls: its statements, its snapshots, and the table of records."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import apsw
import pytest
from msgspec import structs

from queuey.model import ids
from queuey.model.messages import Measure, Message, Queue, Slice
from queuey.storage import bridge
from queuey.storage.sqlite import SqliteOptions, SqliteStore, bulk, open_store
from queuey.storage.sqlite import connection as driver
from tests.backends import APP, Clock
from tests.contract.samples import append_bodies, make_queue, new_message
from tests.storage.sqlite.counted import database_of

DAY = 86_400
IO = Path("/proc/self/io")


def bytes_read() -> int:
    fields = dict(line.split(": ") for line in IO.read_text().splitlines())
    return int(fields["rchar"])


@dataclass
class Opened:
    """A store on a clock that the test moves, with one queue."""

    file: Path
    store: SqliteStore
    queue: Queue
    clock: Clock

    @contextlib.contextmanager
    def connect_directly(self) -> Iterator[apsw.Connection]:
        with contextlib.closing(apsw.Connection(str(self.file))) as connection:
            yield connection

    def count(self, table: str) -> int:
        with self.connect_directly() as connection:
            [(count,)] = connection.execute(f"SELECT count(*) FROM {table}")
        assert isinstance(count, int)
        return count

    def measure_in_parts(self, at_once: int) -> list[list[Measure]]:
        return list(bulk.measure(database_of(self.store), [self.queue], messages=at_once))


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opened]:
    """Opens a store without its own sweep."""
    clock = Clock()
    store = open_store(tmp_path, options=SqliteOptions(clock=clock, sweep_interval=None))
    bridge.run(store.applications.create_application(APP))
    yield Opened(tmp_path / driver.FILE, store, make_queue(store, partitions=3), clock)
    store.close()


def fill(opened: Opened, count: int, *, partition: int = 1, size: int = 10) -> list[Message]:
    now = opened.clock()
    messages = [
        Message(now - (count - n) * 10**6, n % 7, partition, now + DAY * ids.TICKS_PER_SECOND, "x" * (1 + n % size))
        for n in range(count)
    ]
    bridge.run(opened.store.bulk.load(opened.queue, messages))
    return messages


class TestMeasure:
    """Tests that large partitions are measured in parts."""

    @pytest.mark.parametrize("at_once", [1, 7, 50, 200])
    def test_in_parts(self, opened: Opened, at_once: int) -> None:
        """The parts of a partition add up to its size, whatever their size, beside small partitions."""
        first = fill(opened, 100)
        third = fill(opened, 3, partition=3)
        [measure] = opened.measure_in_parts(at_once)
        assert [(one.partition, one.count, one.size, one.exact) for one in measure] == [
            (1, 100, 550, True),
            (3, 3, 6, True),
        ]
        for partition_measure, messages in zip(measure, (first, third), strict=True):
            assert (partition_measure.oldest, partition_measure.newest) == (messages[0].position, messages[-1].position)


class TestSnapshots:
    """Tests that bulk reads do not block the write-ahead log while their results are used."""

    @pytest.mark.parametrize("kind", ["scan_arrow", "measure"])
    def test_none_is_held_between_results(self, opened: Opened, kind: str) -> None:
        """While a caller holds a result, the log with all later writes can be checkpointed."""
        fill(opened, 200)
        queues = [opened.queue, *(make_queue(opened.store) for _ in range(bulk.MAX_MEASURED_QUEUES))]
        results: Iterator[object] = (
            bridge.iterate(opened.store.bulk.scan_arrow(opened.queue, Slice(1, limit=50)))
            if kind == "scan_arrow"
            else bridge.iterate(opened.store.bulk.measure(queues))
        )
        next(results)
        append_bodies(opened.store, opened.queue, "more")
        with opened.connect_directly() as connection:
            pages, copied = connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        assert pages == copied
        assert len(list(results)) > 1


class TestStatements:
    """Tests that statements of bulk reads only use the primary key of messages."""

    @pytest.mark.skipif(not IO.exists(), reason="the system does not say what a process reads")
    def test_bodies_stay_unread(self, opened: Opened) -> None:
        """Positions and sizes are found without reading the pages of long bodies."""
        messages = [structs.replace(message, body="x" * 100_000) for message in fill(opened, 200)]
        bridge.run(opened.store.bulk.load(opened.queue, messages))
        opened.store.close()
        with contextlib.closing(open_store(opened.file.parent)) as store:
            assert bridge.run(store.bulk.horizon(opened.queue)) > messages[-1].ticks
            calls: dict[str, Callable[[], object]] = {
                "rows": lambda: list(bridge.iterate(store.bulk.scan_arrow(opened.queue, Slice(1, limit=1000)))),
                "places": lambda: list(
                    bridge.iterate(store.bulk.scan_arrow(opened.queue, Slice(1, limit=1000), bodies=False))
                ),
                "reach": lambda: bridge.run(store.bulk.extent(opened.queue, Slice(1, limit=1000))),
                "measure": lambda: list(bridge.iterate(store.bulk.measure([opened.queue]))),
            }
            taken = {}
            for name, call in calls.items():
                before = bytes_read()
                call()
                taken[name] = bytes_read() - before
        assert taken["rows"] > 200 * 100_000
        assert max(taken["places"], taken["reach"], taken["measure"]) < 50 * 100_000


def test_long_bodies_are_read_once(opened: Opened) -> None:
    """A batch that is filled by a few long bodies does not read the bodies of the next batch."""
    bridge.run(opened.store.messages.append(opened.queue, [new_message("x" * 200_000)] * 64))
    before = bytes_read()
    batches = list(bridge.iterate(opened.store.bulk.scan_arrow(opened.queue, Slice(1, limit=1000, max_bytes=400_000))))
    assert [len(batch) for batch in batches] == [2] * 32
    assert bytes_read() - before < 4 * 64 * 200_000
