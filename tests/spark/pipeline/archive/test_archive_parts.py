"""Parts of archives in Spark or a file system: small files, many manifests, late listings."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql.functions import date_format

from queuey.pipeline.archive import directory, find_buckets, storage
from queuey.pipeline.archive.archive_job import archive
from queuey.pipeline.archive.directory import ArchiveDirectory
from queuey.pipeline.archive.hadoop_files import FilesUnavailable, HadoopFiles
from queuey.spark.errors import OptionError
from tests.replacing import replace
from tests.spark.kept import Kept, quiet
from tests.spark.pipeline.archive.archives import make_past_queue, options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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

    place = find_buckets.make_option_texts(embedded.store_options)
    messages = spark.read.format("queuey").options(**place, includeHeaders="true", subscribe="orders").load()
    hour = date_format(messages["timestamp"], "yyyyMMdd'T'HH'0000Z'")
    count = storage.write_messages(messages.withColumn("bucket", hour), files, "x")
    with replace(tree, listed):
        rows, found = storage.read_back(spark, files, "x", count, waits=(0, 0))
        assert (count, rows.count(), len(found)) == (20, 20, 2)
        late[0] = 9
        with pytest.raises(FilesUnavailable, match="20 messages were written, and its listing shows files of"):
            storage.read_back(spark, files, "x", count, waits=(0, 0))
