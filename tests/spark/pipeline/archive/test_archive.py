"""Archives of queues: exact, idempotent and sealed; they never lose what they contain."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from queuey.model import ids
from queuey.model.errors import QueueNotFound
from queuey.model.messages import NewMessage
from queuey.pipeline.archive import storage
from queuey.pipeline.archive.archive_job import ArchiveReport, archive
from queuey.pipeline.archive.buckets import ArchiveBucket
from queuey.pipeline.archive.hadoop_files import HadoopFiles
from queuey.pipeline.archive.lease import ArchiveBusy, ArchiveLease
from queuey.pipeline.archive.manifest import ArchiveDamaged
from queuey.spark.errors import OptionError
from queuey.spark.options import Subscribe
from queuey.storage import bridge
from tests.replacing import replace
from tests.spark.kept import Kept, quiet
from tests.spark.pipeline.archive.archives import (
    HOUR,
    check_archive,
    last_hour,
    list_contents,
    make_past_queue,
    message,
    options,
    read_content,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WEIRD = "100%, {a}=[b]*:? ü"
"""The name of a queue with most characters that directory names cannot contain."""


@pytest.fixture
def to(tmp_path: Path) -> Path:
    return tmp_path / "archive"


def rows(spark: SparkSession, to: Path, queue: str) -> list[tuple[Any, ...]]:
    return sorted(read_content(row) for row in storage.archived(spark, str(to), queue).collect())


def test_everything_is_kept_exactly(spark: SparkSession, embedded: Kept, to: Path) -> None:
    """All messages of closed buckets are archived with all their fields, and a second run does nothing.

    A dry run, and one beside another run, change nothing.
    """
    first = make_past_queue(embedded, "orders", 120, hours=2)
    second = make_past_queue(embedded, WEIRD, 30, hours=3, partitions=3)
    embedded.post(first, [NewMessage("now", 1, 600)])
    embedded.queue("empty")
    planned = archive(spark, options(embedded, to, dry_run=True), quiet)
    with (
        ArchiveLease(embedded.store.ledger, HadoopFiles(spark, str(to)).root),
        pytest.raises(ArchiveBusy, match=r"Another run writes to .*: process"),
    ):
        archive(spark, options(embedded, to), quiet)
    assert not to.exists()
    report = archive(spark, options(embedded, to), quiet)
    assert [(one.queue, one.count) for one in report.archived] == [(WEIRD, 10)] * 3 + [("orders", 60)] * 2
    assert [(one.queue, one.bucket, one.count) for one in planned.archived] == [
        (one.queue, one.bucket, one.count) for one in report.archived
    ]
    old = [one for one in embedded.all(first) if one.body != "now"]
    assert rows(spark, to, "orders") == list_contents(old)
    assert rows(spark, to, WEIRD) == list_contents(embedded.all(second))
    sealed = json.loads(min((to / "manifests/queue=orders").glob("*.json")).read_text())
    assert sealed["summary"]["count"] == 60
    assert sealed["verified"]
    first_of_all = min((one for one in old if one.partition == 1), key=lambda one: one.position)
    assert sealed["summary"]["partitions"]["1"]["first"] == first_of_all.id
    assert check_archive(spark, embedded, to).ok
    # An hour may have ended meanwhile, that of the newest message.
    done = {(one.queue, one.bucket) for one in report.archived}
    assert not [one for one in archive(spark, options(embedded, to), quiet).archived if (one.queue, one.bucket) in done]
    assert not (to / "_staging").exists()


def test_a_scan_that_misses_messages(spark: SparkSession, embedded: Kept, to: Path) -> None:
    """A bucket that lacks messages at the second scan is not archived; the others are."""
    make_past_queue(embedded, "orders", 40, hours=2)
    lost = ArchiveBucket(last_hour() - HOUR, HOUR).name
    write = storage.write_messages

    def lossy(messages: Any, files: HadoopFiles, path: str) -> int:  # noqa: ANN401 - a frame
        return write(messages.where(f"bucket != '{lost}' OR partition != 1"), files, path)

    with replace(write, lossy):
        report = archive(spark, options(embedded, to), quiet)
    assert not report.ok
    assert [(one.bucket, one.missing, one.changed) for one in report.failed] == [(lost, 10, 0)]
    assert [one.count for one in report.archived] == [20]
    assert len(list((to / "manifests").glob("*/*.json"))) == 1
    assert not list((to / "messages").glob(f"*/*/bucket={lost}"))
    assert [one.count for one in archive(spark, options(embedded, to), quiet).archived] == [20]


def test_damage_is_found(spark: SparkSession, embedded: Kept, to: Path) -> None:
    """A check finds lost files, foreign files, invalid manifests, and messages that only the store has.

    Buckets older than their queue's TTL are reported by the run that archives them.
    """
    # Half an hour from the end of any bucket, so that an hour may end meanwhile.
    ttl = int(time.time()) - last_hour() + 2 * HOUR + HOUR // 2
    queue = make_past_queue(embedded, "orders", 80, hours=4, ttl=ttl)
    report = archive(spark, options(embedded, to), quiet)
    assert [one.expiring for one in report.archived] == [True, True, False, False]
    names = [ArchiveBucket(last_hour() - back * HOUR, HOUR).name for back in (4, 3, 2, 1)]
    files = [next((to / "messages").glob(f"run=*/queue=orders/bucket={name}/*.parquet")) for name in names]
    files[0].unlink()
    files[1].with_name(f".{files[1].name}.crc").unlink()
    files[1].write_bytes(files[2].read_bytes())
    next((to / "manifests/queue=orders").glob(f"{names[2]}.*.json")).write_text("{}")
    low = ids.random_low()
    bridge.run(embedded.store.bulk.load(queue, [message(0, last_hour() - HOUR + 7, low, 2)]))
    checked = check_archive(spark, embedded, to)
    damage = {name: [one.text for one in checked.damaged if one.bucket == name] for name in names}
    assert any("missing" in text for text in damage[names[0]])
    assert any("have changed" in text for text in damage[names[1]])
    assert damage[names[3]] == ["it lacks 1 messages of the store"]
    assert len(checked.unreadable) == 1
    assert not checked.ok
    again = archive(spark, options(embedded, to, again=True), quiet)
    # One bucket was lost, and one has the messages of another beside its own.
    assert sum(one.count for one in again.archived) >= 81
    assert any("is missing" in text for text in again.damaged)
    assert {one.bucket for one in check_archive(spark, embedded, to).damaged} <= {names[1]}


def test_another_life_of_a_queue(spark: SparkSession, embedded: Kept, to: Path) -> None:
    """A bucket of a purged queue is archived again, and keeps the messages of both archivings."""
    queue = make_past_queue(embedded, "orders", 20, hours=1)
    before = list_contents(embedded.all(queue))
    archive(spark, options(embedded, to), quiet)
    queue = bridge.run(embedded.store.catalogue.purge_queue(queue))
    assert archive(spark, options(embedded, to), quiet).archived == ()
    bridge.run(embedded.store.bulk.load(queue, [message(5, last_hour() - 5, ids.random_low(), 2)]))
    report = archive(spark, options(embedded, to), quiet)
    assert [one.count for one in report.archived] == [21]
    assert rows(spark, to, "orders") == sorted(before + list_contents(embedded.all(queue)))


def test_what_is_refused(spark: SparkSession, embedded: Kept, to: Path, tmp_path: Path) -> None:
    """Unknown queues, other directories, and archives of other kinds and formats are refused."""
    make_past_queue(embedded, "orders", 4, hours=1)
    with pytest.raises(QueueNotFound):
        archive(spark, options(embedded, to, selection=Subscribe(("nothing",))), quiet)
    other = tmp_path / "other"
    other.mkdir()
    (other / "letter.txt").write_text("x")
    with pytest.raises(OptionError, match="other files"):
        archive(spark, options(embedded, other), quiet)
    archive(spark, options(embedded, to), quiet)
    with pytest.raises(OptionError, match="width of buckets"):
        archive(spark, options(embedded, to, seconds=60), quiet)
    newer = tmp_path / "newer"
    newer.mkdir()
    (newer / "archive.json").write_text('{"application": "acme", "seconds": 3600, "format": 2}')
    with pytest.raises(ArchiveDamaged, match=r"archive\.json: written in format 2, but this program reads format 1"):
        archive(spark, options(embedded, newer), quiet)


def test_many_queues_are_one_run(spark: SparkSession, embedded: Kept, to: Path) -> None:
    """A run over many queues takes a handful of Spark jobs."""
    for number in range(20):
        make_past_queue(embedded, f"q{number}", 4, hours=1)
    tracker = spark.sparkContext.statusTracker()
    spark.sparkContext.setJobGroup("many", "many queues")
    report: ArchiveReport = archive(spark, options(embedded, to), quiet)
    jobs = tracker.getJobIdsForGroup("many")
    spark.sparkContext.setLocalProperty("spark.jobGroup.id", "")
    assert (len(report.archived), report.messages) == (20, 80)
    assert 0 < len(jobs) <= 12
