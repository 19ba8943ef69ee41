"""Streams whose driver is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from pyarrow import parquet

from queuey.messages import NewMessage
from tests.spark.faults.failing import KILL_SPARK, POINTS
from tests.spark.kept import TTL, Kept

ROOT = Path(__file__).parents[3]
SINK = "sink"
"""The point where the files of a batch count and the batch itself does not yet."""
PATIENCE = 90


@contextmanager
def driver(place: Path, options: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """Starts a driver; it is gone afterwards."""
    given = [f"{name}={value}" for name, value in options.items()]
    command = [sys.executable, "-m", "tests.spark.faults.archiving", str(place), *given]
    with (place / "log").open("ab") as log:
        process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, start_new_session=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(PATIENCE)


def await_or_end(process: subprocess.Popen[bytes], there: Callable[[], bool]) -> bool:
    """Waits for something with the least delay; returns False if the process ends before."""
    until = time.monotonic() + PATIENCE
    while process.poll() is None:
        if there():
            return True
        assert time.monotonic() < until
        time.sleep(0.0002)
    return False


@pytest.mark.timeout(300)
@pytest.mark.slow
@pytest.mark.parametrize("point", [*POINTS, SINK])
def test_a_stream_goes_on_exactly_after_its_driver_was_killed(point: str, embedded: Kept, tmp_path: Path) -> None:
    """Killed between its logs, with tasks that are killed as well in the next run: every row is written once."""
    queue = embedded.queue(partitions=2)
    items = [NewMessage(str(number), number % 2 + 1, TTL) for number in range(300)]
    sent = embedded.post(queue, items)
    options = {**embedded.options, "subscribe": "orders", "startingOffsets": "earliest", "maxOffsetsPerTrigger": "100"}
    (tmp_path / "faults").mkdir()
    checkpoint, metadata = tmp_path / "checkpoint", tmp_path / "rows" / "_spark_metadata"
    if point != SINK:
        (tmp_path / "faults" / point).write_text(KILL_SPARK)
    with driver(tmp_path, options) as process:
        if point == SINK:
            assert await_or_end(process, (metadata / "1").exists), (tmp_path / "log").read_text()[-3000:]
            os.killpg(process.pid, signal.SIGKILL)
        assert process.wait(PATIENCE) != 0
    assert not (tmp_path / "faults" / point).exists()
    assert not (checkpoint / "commits" / "2").exists(), "it was killed too late"
    sent += embedded.post(queue, items[:50])
    (tmp_path / "faults" / "tasks").touch()
    with driver(tmp_path, options) as process:
        assert process.wait(PATIENCE) == 0, (tmp_path / "log").read_text()[-3000:]
    assert Counter(ids_in(metadata)) == Counter(one.id for one in sent)


def ids_in(metadata: Path) -> Iterator[str]:
    """The ids in the files that count; attempts that failed leave others behind."""
    for batch in metadata.glob("[0-9]*"):
        for line in batch.read_text().splitlines()[1:]:
            yield from parquet.read_table(unquote(urlsplit(json.loads(line)["path"]).path))["id"].to_pylist()
