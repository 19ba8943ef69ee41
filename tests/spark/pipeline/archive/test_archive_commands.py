"""The commands ``queuey pipeline archive`` and ``replay``, from the command line to their output."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from queuey.cli import main
from queuey.spark.session import session
from tests.commands import Run, make_runner
from tests.replacing import replace
from tests.spark.kept import Kept
from tests.spark.pipeline.archive.archives import make_past_queue

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def run(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """Runs a command in the tests' session, which it does not end."""
    with replace(session, lambda **_: spark), replace(type(spark).stop, lambda self: None):
        yield make_runner("queuey", main, monkeypatch)


def test_there_and_back(run: Run, embedded: Kept, tmp_path: Path) -> None:
    """A queue is archived, checked and replayed by commands; each prints one JSON document or a table."""
    make_past_queue(embedded, "orders", 30, hours=2)
    data, to = ("--data", embedded.options["data"]), str(tmp_path / "archive")
    planned = run("pipeline", "archive", "orders", "--to", to, *data, "--dry-run", "--json")
    assert (planned.code, planned.json["dry_run"], planned.json["messages"]) == (0, True, 30)
    done = run("pipeline", "archive", "--pattern", "ord.*", "--to", to, *data)
    assert done.code == 0, done.err
    assert done.text.split()[:4] == ["queue", "bucket", "messages", "bytes"]
    assert "2 buckets with 30 messages of 1 queue archived" in done.err
    checked = run("pipeline", "archive", "orders", "--to", to, *data, "--check", "--json")
    assert (checked.code, checked.json["damaged"], checked.json["messages"]) == (0, [], 30)
    replayed = run("pipeline", "replay", to, "--into", "copy", "--from", "-3h", *data, "--json")
    assert replayed.code == 0, replayed.err
    assert [one["target"] for one in replayed.json["queues"]] == ["copy"]
    refused = run("pipeline", "replay", to, "orders", *data)
    assert refused.code == 2
    assert refused.err.splitlines()[-1].startswith("queuey: queue 'orders' exists")
    next((tmp_path / "archive/messages").glob("*/*/*/*.parquet")).unlink()
    damaged = run("pipeline", "archive", "orders", "--to", to, *data, "--check")
    assert damaged.code == 1
    assert "is missing" in damaged.err
