"""Streams into queues whose driver is killed, and restarted in time or too late."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Self

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from queuey import ids
from queuey.messages import NewMessage, Queue, Slice
from queuey.storage import bridge
from tests.spark.faults.drivers import await_or_end, driver
from tests.spark.kept import Kept
from tests.spark.mortal import COMMITTING, IN_TASKS

ROOT = Path(__file__).parents[3]
COMMITTED = "committed"
"""Spark has recorded the micro-batch, and not begun another."""
NOWHERE = "nowhere"
PATIENCE = 1500
"""Timeout in seconds; a driver needs 15 s of processor time to do anything, and the machine may be busy."""
ROWS = 400
"""Rows of each micro-batch."""


class Follower:
    """Reads a queue continuously with cursors, as any reader may, while others write to the same store."""

    def __init__(self, kept: Kept, queue: Queue) -> None:
        self._kept = kept
        self._queue = queue
        self._other = kept.queue("other")
        self._cursors = dict.fromkeys(range(1, queue.partitions + 1), ids.FIRST)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.seen: Counter[str] = Counter()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(60)

    def _run(self) -> None:
        while not self._ended.wait(0.2):
            bridge.run(self._kept.store.messages.append(self._other, [NewMessage("tick", 1, 60)]))
            self.read()

    def read(self) -> None:
        for partition in self._cursors:
            more = True
            while more:
                [page] = bridge.run(
                    self._kept.store.messages.read(
                        self._queue, [Slice(partition, self._cursors[partition], limit=1000)]
                    )
                )
                self.seen.update(str(message.body) for message in page.messages)
                assert page.next is not None
                self._cursors[partition], more = page.next, page.more


def stream(kept: Kept, place: Path, points: list[str], lead: str) -> None:
    """Kills a driver at each point, one micro-batch further each time, and then lets one end; checks all rows."""
    queue = kept.queue("orders", partitions=2)
    for part in ("given", "deaths"):
        (place / part).mkdir()
    expected = [f"m{number}" for number in range((len(points) + 1) * ROWS)]
    for number in range(len(points) + 1):
        table = pa.table({"value": expected[number * ROWS : (number + 1) * ROWS]})
        pq.write_table(table, place / "given" / f"{number:03}.parquet")
        os.utime(place / "given" / f"{number:03}.parquet", (1_700_000_000 + number, 1_700_000_000 + number))
    options = {**kept.options, "queue": "orders", "lead": lead}
    with Follower(kept, queue) as follower:
        for batch, point in enumerate(points):
            with driver("sending", place, point, str(batch), options=options, seconds=PATIENCE) as process:
                if point == COMMITTED:
                    assert await_or_end(process, (place / "checkpoint" / "commits" / str(batch)).exists, PATIENCE)
                    os.killpg(process.pid, signal.SIGKILL)
                assert process.wait(PATIENCE) != 0, (place / "log").read_text()[-3000:]
            assert (place / "checkpoint" / "offsets" / str(batch)).exists()
            assert (place / "checkpoint" / "commits" / str(batch)).exists() == (point == COMMITTED)
        with driver("sending", place, NOWHERE, "0", options=options, seconds=PATIENCE) as process:
            assert process.wait(PATIENCE) == 0, (place / "log").read_text()[-3000:]
        newest = [info.newest for info in bridge.run(kept.store.messages.inspect(queue))[1] if info.newest is not None]
        until = time.monotonic() + float(lead) + PATIENCE
        while bridge.run(kept.store.bulk.horizon(queue)) <= max(newest)[0]:
            assert time.monotonic() < until
            time.sleep(0.05)
    follower.read()
    assert Counter(str(message.body) for message in kept.all(queue)) == Counter(expected)
    assert follower.seen == Counter(expected)


@pytest.mark.slow
def test_a_stream_whose_driver_is_killed_writes_every_row_once(embedded: Kept, tmp_path: Path) -> None:
    """A stream killed with half a micro-batch written, and restarted after its ids passed, writes every row once."""
    stream(embedded, tmp_path, ["half"], lead="1")
    log = (tmp_path / "log").read_text()
    assert "200 messages for queue orders got later ids" in log
    assert "200 messages for queue orders were written by attempts that ended" in log


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
