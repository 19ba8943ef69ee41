"""Streams into and out of queues whose driver is killed, and restarted in time or too late."""

from __future__ import annotations

import json
import os
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import parquet

from queuey.model.messages import NewMessage, Queue
from queuey.storage import bridge
from tests.spark.attempts import Reader
from tests.spark.faults.drivers import driver, end_of, kill_when
from tests.spark.faults.faulty import COMMITTING, DRIVER, IN_TASKS, READ_POINTS, Faults
from tests.spark.kept import TTL, Kept

COMMITTED = "committed"
"""Spark has recorded the micro-batch, and not begun another."""
ROWS = 400
"""Rows of each micro-batch."""


@contextmanager
def following(kept: Kept, queue: Queue) -> Iterator[Reader]:
    """Reads a queue continuously with cursors, as any reader may, while others write to the same store."""
    reader, other, ended = Reader(kept.store, queue), kept.queue("other"), threading.Event()

    def follow() -> None:
        while not ended.wait(0.2):
            bridge.run(kept.store.messages.append(other, [NewMessage("tick", 1, 60)]))
            reader.read()

    thread = threading.Thread(target=follow)
    thread.start()
    try:
        yield reader
    finally:
        ended.set()
        thread.join(60)


def stream(kept: Kept, place: Path, points: list[str], lead: str) -> None:
    """Kills a driver at each point, one micro-batch further each time, and then lets one end; checks all rows."""
    queue = kept.queue("orders", partitions=2)
    for folder in ("given", "faults"):
        (place / folder).mkdir()
    expected = [f"m{number}" for number in range((len(points) + 1) * ROWS)]
    for number in range(len(points) + 1):
        table = pa.table({"value": expected[number * ROWS : (number + 1) * ROWS]})
        pq.write_table(table, place / "given" / f"{number:03}.parquet")
        os.utime(place / "given" / f"{number:03}.parquet", (1_700_000_000 + number, 1_700_000_000 + number))
    options = {**kept.options, "queue": "orders", "lead": lead}
    with following(kept, queue) as reader:
        for batch, point in enumerate(points):
            with driver(place, "write", options, Faults(str(place / "faults"), point, DRIVER, str(batch))) as process:
                if point == COMMITTED:
                    kill_when(process, (place / "checkpoint" / "commits" / str(batch)).exists)
                assert end_of(process, place)
            assert (place / "checkpoint" / "offsets" / str(batch)).exists()
            assert (place / "checkpoint" / "commits" / str(batch)).exists() == (point == COMMITTED)
        with driver(place, "write", options, Faults(str(place / "faults"), "nowhere")) as process:
            assert end_of(process, place) == ""
        stored = kept.settle_and_read("orders")
    reader.read()
    assert Counter(str(message.body) for message in stored) == Counter(expected)
    assert Counter(reader.seen) == Counter(expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("where", "lead", "points"),
    [
        pytest.param("embedded", "0.5", [*IN_TASKS, COMMITTING, COMMITTED], id="embedded-too-late-everywhere"),
        pytest.param("clustered", "60", [*IN_TASKS, COMMITTING, COMMITTED], id="clustered-in-time-everywhere"),
        pytest.param("embedded", "60", ["half", COMMITTED], id="embedded-in-time"),
        pytest.param("clustered", "0.5", ["half", COMMITTING], id="clustered-too-late"),
    ],
)
def test_a_stream_whose_driver_is_killed_at_every_point_writes_every_row_once(
    where: str, lead: str, points: list[str], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Killed at each point between its logs, in time and too late, a stream writes every row once on every store."""
    kept: Kept = request.getfixturevalue(where)
    stream(kept, tmp_path, points, lead)


SINK = "sink"
"""The point at which the files of a batch count and the batch itself does not yet."""


@pytest.mark.slow
@pytest.mark.parametrize("point", [*READ_POINTS, SINK])
def test_a_stream_goes_on_exactly_after_its_driver_was_killed(point: str, embedded: Kept, tmp_path: Path) -> None:
    """A stream whose driver is killed between its logs, and then its tasks, writes every row once."""
    queue = embedded.queue(partitions=2)
    items = [NewMessage(str(number), number % 2 + 1, TTL) for number in range(300)]
    sent = embedded.post(queue, items)
    options = {**embedded.options, "subscribe": "orders", "startingOffsets": "earliest", "maxOffsetsPerTrigger": "100"}
    directory = tmp_path / "faults"
    directory.mkdir()
    checkpoint, metadata = tmp_path / "checkpoint", tmp_path / "rows" / "_spark_metadata"
    with driver(tmp_path, "read", options, Faults(str(directory), point, DRIVER)) as process:
        if point == SINK:
            kill_when(process, (metadata / "1").exists)
        assert end_of(process, tmp_path), "it ended before it was killed"
    assert point == SINK or [path.name for path in directory.iterdir()] == [point], (tmp_path / "log").read_text()
    assert not (checkpoint / "commits" / "2").exists(), "it was killed too late"
    sent += embedded.post(queue, items[:50])
    with driver(tmp_path, "read", options, Faults(str(directory), "read")) as process:
        assert end_of(process, tmp_path) == ""
    assert Counter(ids_in(metadata)) == Counter(one.id for one in sent)


def ids_in(metadata: Path) -> Iterator[str]:
    for batch in metadata.glob("[0-9]*"):
        for line in batch.read_text().splitlines()[1:]:
            yield from parquet.read_table(unquote(urlsplit(json.loads(line)["path"]).path))["id"].to_pylist()
