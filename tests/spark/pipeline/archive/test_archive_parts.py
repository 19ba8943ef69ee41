"""Parts of archives in Spark or a file system: names of buckets, many manifests, streams that continue."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from queuey.model import ids
from queuey.model.messages import NewMessage
from queuey.pipeline.archive import directory, find_buckets, storage, stream_parts
from queuey.pipeline.archive.archive_job import archive
from queuey.pipeline.archive.archive_stream import archive_stream
from queuey.pipeline.archive.buckets import ArchiveBucket
from queuey.pipeline.archive.directory import ArchiveDirectory
from queuey.pipeline.archive.hadoop_files import FilesUnavailable, HadoopFiles
from queuey.pipeline.archive.stream_parts import StreamParts
from queuey.spark.errors import OptionError
from queuey.spark.options import Assign
from tests.replacing import replace
from tests.spark.kept import Kept, quiet
from tests.spark.pipeline.archive.archives import make_past_queue, options
from tests.waiting import until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MOMENTS = (0, 59, 3599, 3600, 951_782_399, 1_774_749_600, 1_774_753_199, 1_792_890_000, 1_795_188_242)
"""Seconds since 1970; among them ends of days, and hours of clock changes."""


def read_orders(spark: SparkSession, kept: Kept) -> DataFrame:
    place = find_buckets.make_option_texts(kept.store_options)
    return spark.read.format("queuey").options(**place, includeHeaders="true", subscribe="orders").load()


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kathmandu"])
def test_names_of_buckets_by_spark(spark: SparkSession, zone: str) -> None:
    """Spark names buckets as Python does, whatever the time zone of a session."""
    before = spark.conf.get("spark.sql.session.timeZone")
    assert before is not None
    rows = [(seconds, datetime.fromtimestamp(seconds, UTC)) for seconds in MOMENTS]
    try:
        spark.conf.set("spark.sql.session.timeZone", zone)
        frame = spark.createDataFrame(rows, "seconds long, timestamp timestamp")
        for width in (900, 86_400):
            name = stream_parts.bucket_name(frame["timestamp"], width).alias("name")
            names = {row.seconds: row.name for row in frame.select("seconds", name).collect()}
            assert names == {seconds: ArchiveBucket(seconds // width * width, width).name for seconds in MOMENTS}
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)


def test_files(spark: SparkSession, tmp_path: Path) -> None:
    """Small files are replaced atomically, files below a directory are listed, and failures raise one error."""
    files = HadoopFiles(spark, str(tmp_path))
    assert (files.read("a/b"), files.list("a"), files.exists("a")) == (None, [], False)
    for text in ("first ü", "second ü"):
        files.write("a/b", text)
        assert files.read("a/b") == text
    assert [entry.name for entry in files.list("a") if not entry.name.startswith(".")] == ["b"]
    files.write("c/d e/f", "more")
    assert files.list_tree("c") == {"d e/f": 4}
    assert (files.find_length("c/d e/f"), files.find_length("c/g"), files.list_tree("g")) == (4, None, {})
    with replace(HadoopFiles.has_atomic_rename, lambda self: False):
        files.write("a/b", "as in an object store")
    assert files.read("a/b") == "as in an object store"
    with pytest.raises(FilesUnavailable, match="a/b/_e"):
        files.write("a/b/e", "below a file")
    with pytest.raises(FilesUnavailable, match="nowhere"):
        HadoopFiles(spark, "nowhere://x/y")
    with pytest.raises(OptionError, match="the name of an archive cannot contain"):
        HadoopFiles(spark, str(tmp_path / "a[1]"))


def test_many_manifests(spark: SparkSession, embedded: Kept, tmp_path: Path) -> None:
    """Many manifests are read by a job, which still finds the damaged one."""
    make_past_queue(embedded, "orders, later = {x}", 40, hours=4)
    to = tmp_path / "archive"
    archive(spark, options(embedded, to), quiet)
    existing = directory.open_existing(spark, str(to))
    [name] = existing.list_queue_names()
    keys = {(name, bucket) for bucket in existing.list_bucket_names(name)}
    expected = existing.read_manifests(keys)
    existing = ArchiveDirectory(spark, existing.files, existing.about, max_serial_files=1)
    assert existing.read_manifests(keys) == expected
    assert expected[1].path.startswith("manifests/queue=orders, later %3D %7Bx}/")
    existing.files.write(expected[1].path, "{}")
    damaged: list[str] = []
    assert existing.read_manifests(keys, damaged) == [expected[0], *expected[2:]]
    assert expected[1].bucket in damaged[0]


def test_files_that_a_listing_lacks(spark: SparkSession, embedded: Kept, tmp_path: Path) -> None:
    """Written files are found although a listing lacks them at first; if it keeps lacking them, that is an error."""
    make_past_queue(embedded, "orders", 20, hours=2)
    files, tree, late = HadoopFiles(spark, str(tmp_path)), HadoopFiles.list_tree, [1]

    def listed(self: HadoopFiles, path: str) -> dict[str, int]:
        late[0] -= 1
        found = tree(self, path)
        return dict(list(found.items())[2 * (late[0] >= 0) :])

    messages = read_orders(spark, embedded)
    named = messages.withColumn("bucket", stream_parts.bucket_name(messages["timestamp"], 3600))
    count = storage.write_messages(named, files, "x")
    with replace(tree, listed):
        rows, found = storage.read_back(spark, files, "x", count, waits=(0, 0))
        assert (count, rows.count(), len(found)) == (20, 20, 2)
        late[0] = 9
        with pytest.raises(FilesUnavailable, match="20 messages were written, and its listing shows files of"):
            storage.read_back(spark, files, "x", count, waits=(0, 0))


def test_a_micro_batch_that_comes_again(spark: SparkSession, embedded: Kept, tmp_path: Path) -> None:
    """A micro-batch that is repeated with fewer messages, because some have expired, keeps those stored before."""
    queue = make_past_queue(embedded, "orders", 10, hours=1)
    messages = read_orders(spark, embedded)
    files = HadoopFiles(spark, str(tmp_path / "archive"))
    StreamParts(files).write(messages, "query", 3, 3600)
    with replace(HadoopFiles.list, lambda self, path: []):
        parts = StreamParts(files)
    assert not parts.incomplete_keys
    parts.write(messages.limit(1), "query", 4, 3600)
    StreamParts(files).write(messages.limit(1), "query", 3, 3600)
    for same in (parts, StreamParts(files)):
        assert len(same.incomplete_keys) == 1
        assert same.read(spark, same.incomplete_keys).count() == len(embedded.all(queue))
    parts.remove_complete("query", 5)
    assert StreamParts(files).incomplete_keys == parts.incomplete_keys
    parts.mark_complete([*parts.incomplete_keys])
    parts.remove_complete("query", 4)
    assert [name for name in files.list_tree("_incoming/query") if name.endswith(".json")] == ["4.json"]
    parts.remove_complete("query", 5)
    assert files.list_tree("_incoming") == {}


def test_a_stream_that_goes_on(spark: SparkSession, embedded: Kept, tmp_path: Path) -> None:
    """A running stream completes buckets, even without new messages, and ends when it is stopped.

    Its checkpoint is refused for an archive that has none of the files that it has kept so far.
    """
    to, queue = tmp_path / "archive", embedded.queue("orders", partitions=2)
    chosen = options(embedded, to, selection=Assign((("orders", (1,)),)))
    with pytest.raises(OptionError, match="whole queues"):
        archive_stream(spark, chosen, str(tmp_path / "checkpoint"), quiet)
    messages = embedded.post(queue, [NewMessage(f"{n}", n % 2 + 1, 600) for n in range(20)])
    chosen = options(embedded, to, seconds=1)
    with ThreadPoolExecutor(1) as pool:
        stream = pool.submit(archive_stream, spark, chosen, str(tmp_path / "checkpoint"), quiet, every=1)
        until(lambda: bool(list(to.glob("manifests/*/*.json"))) or stream.done(), 90)
        last = max(message.ticks for message in messages)
        until(lambda: time.time() > ids.ticks_to_seconds(last) + 3)
        for query in spark.streams.active:
            query.stop()
        report = stream.result(60)
    assert (report.messages, report.failed, report.open) == (20, (), 0)
    found = storage.archived(spark, str(to))
    assert sorted(row.id for row in found.collect()) == sorted(one.id for one in messages)
    other = options(embedded, tmp_path / "other")
    with pytest.raises(OptionError, match="belongs to another archive"):
        archive_stream(spark, other, str(tmp_path / "checkpoint"), quiet, once=True)
