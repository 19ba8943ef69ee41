"""The measure of micro-batches: that they hold what they should."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.harness import Bench, Void
from bench.load import traffic
from bench.measures.spark import streams
from bench.measures.spark.streams import BATCH, BATCHES, Followed
from bench.started import service
from queuey.spark import open_stores


@pytest.mark.parametrize("start", ["latest", "earliest"])
def test_each_batch_holds_a_thousand_messages(start: str, tmp_path: Path) -> None:
    """New ones, or ones out of a backlog that is long enough; a batch of any other size does not count."""
    store = service.prepare(tmp_path)
    queue = store.queue(service.APPLICATION, "bench")
    service.fill(store, queue, traffic.bodies(BATCH), BATCH * BATCHES + 1)
    followed = Followed(store, {"data": str(tmp_path)}, start)
    report = streams.compared(Bench(tmp_path, quick=True), {("it", 1): followed.batches}, 2)
    assert [len(row.samples) for row in report.rows] == [2]
    if start == "earliest":
        with pytest.raises(Void, match="1 rows"):
            followed.batch()
    open_stores.close_all()
    store.close()
