"""Streams whose driver is killed."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from pyarrow import parquet

from queuey.messages import NewMessage
from tests.spark.faults.drivers import await_or_end, driver
from tests.spark.faults.failing import KILL_SPARK, POINTS
from tests.spark.kept import TTL, Kept

ROOT = Path(__file__).parents[3]
SINK = "sink"
"""The point at which the files of a batch count and the batch itself does not yet."""
PATIENCE = 1500
"""Timeout in seconds; a driver needs 15 s of processor time to do anything, and the machine may be busy."""


@pytest.mark.slow
@pytest.mark.parametrize("point", [*POINTS, SINK])
def test_a_stream_goes_on_exactly_after_its_driver_was_killed(point: str, embedded: Kept, tmp_path: Path) -> None:
    """A stream whose driver is killed between its logs, and then its tasks, writes every row once."""
    queue = embedded.queue(partitions=2)
    items = [NewMessage(str(number), number % 2 + 1, TTL) for number in range(300)]
    sent = embedded.post(queue, items)
    options = {**embedded.options, "subscribe": "orders", "startingOffsets": "earliest", "maxOffsetsPerTrigger": "100"}
    (tmp_path / "faults").mkdir()
    checkpoint, metadata = tmp_path / "checkpoint", tmp_path / "rows" / "_spark_metadata"
    if point != SINK:
        (tmp_path / "faults" / point).write_text(KILL_SPARK)
    with driver("archiving", tmp_path, options=options, seconds=PATIENCE) as process:
        if point == SINK:
            assert await_or_end(process, (metadata / "1").exists, PATIENCE), (tmp_path / "log").read_text()[-3000:]
            os.killpg(process.pid, signal.SIGKILL)
        assert process.wait(PATIENCE) != 0, "it ended before it was killed:\n" + (tmp_path / "log").read_text()[-3000:]
    assert not (tmp_path / "faults" / point).exists(), (tmp_path / "log").read_text()[-3000:]
    assert not (checkpoint / "commits" / "2").exists(), "it was killed too late"
    sent += embedded.post(queue, items[:50])
    (tmp_path / "faults" / "tasks").touch()
    with driver("archiving", tmp_path, options=options, seconds=PATIENCE) as process:
        assert process.wait(PATIENCE) == 0, (tmp_path / "log").read_text()[-3000:]
    assert Counter(ids_in(metadata)) == Counter(one.id for one in sent)


def ids_in(metadata: Path) -> Iterator[str]:
    for batch in metadata.glob("[0-9]*"):
        for line in batch.read_text().splitlines()[1:]:
            yield from parquet.read_table(unquote(urlsplit(json.loads(line)["path"]).path))["id"].to_pylist()
