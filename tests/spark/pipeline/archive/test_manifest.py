"""Manifests: the pure part of an archive."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuey.pipeline.archive import manifest
from queuey.pipeline.archive.manifest import (
    ArchiveDamaged,
    ArchivedQueue,
    DataFile,
    Manifest,
    MessageSetHash,
    PartitionEnds,
    Summary,
)

ID = "0764d916e4da11f1ace76f55453ea5fb"
SUMMARY = Summary(
    count=2,
    bytes=20,
    hash=MessageSetHash.from_xor_and_sum(-1, -2),
    partitions={1: PartitionEnds(1, ID, ID), 3: PartitionEnds(1, ID, ID)},
    expires=("2026-11-21T16:00:46.724917Z", "2026-11-22T16:00:46.724917Z"),
)
ONE = Manifest(
    queue="a=b/ü",
    bucket="20261120T140000Z",
    seconds=3600,
    source=ArchivedQueue(uid="1", qid="2", partitions=3, consistency="strong", ttl=None),
    summary=SUMMARY,
    files=(DataFile("part-0.parquet", 123),),
    archived="2026-11-20T15:01:47.137111Z",
    verified=True,
    expiring=False,
    run="r1",
)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "x: "),
        ("{}", "format"),
        ('{"format": 2}', "format 2, but this program reads format 1"),
        ('{"format": 1}', "queue"),
        (manifest.encode(ONE)[:-9], "x: "),
        (manifest.encode(ONE).replace("20261120T140000Z", "20261120T143000Z"), "no bucket"),
    ],
)
def test_other_files_are_none(text: str, said: str) -> None:
    """A truncated file, or one of another format, is refused, and the error names it."""
    with pytest.raises(ArchiveDamaged, match=said) as caught:
        manifest.decode(text, "x", Manifest)
    assert str(caught.value).startswith("x")


@given(st.text(st.characters(exclude_characters="/", exclude_categories=["Cc", "Cs"]), min_size=1, max_size=50))
def test_names_in_places(name: str) -> None:
    """A queue's name has one unambiguous directory below its parent."""
    from urllib.parse import unquote  # noqa: PLC0415 - as the archive imports it

    path = manifest.manifest_path(name, "20261120T140000Z", "r1")
    assert path.count("/") == 2
    assert unquote(path.split("/")[1].removeprefix("queue=")) == name
    assert manifest.parse_data_path(f"{manifest.bucket_path(name, 'x')}/part.parquet") == (name, "x")


def test_what_is_a_manifest() -> None:
    """A file's name gives its bucket and run; temporary and foreign files are ignored."""
    name = manifest.manifest_path("a", "20261120T140000Z", "r1").rpartition("/")[2]
    assert manifest.parse_manifest_name(name) == ("20261120T140000Z", "r1")
    for name in (
        "_20261120T140000Z.r1.json.new",
        "_20261120T140000Z.json",
        "20261120T140000Z.json",
        ".20261120T140000Z.json.crc",
        "notes.txt",
        "x",
    ):
        assert manifest.parse_manifest_name(name) is None


def test_identity() -> None:
    """The identity of messages depends on their content, not on the time and way of archiving."""
    again = msgspec.structs.replace(
        ONE, archived="later", files=(), source=msgspec.structs.replace(ONE.source, qid="9")
    )
    other = msgspec.structs.replace(
        ONE, summary=msgspec.structs.replace(SUMMARY, hash=MessageSetHash.from_xor_and_sum(1, 2))
    )
    assert manifest.digest_manifests([ONE]) == manifest.digest_manifests([again])
    assert len({manifest.digest_manifests(some) for some in ([ONE], [other], [ONE, other], [])}) == 4
    assert manifest.digest_manifests([ONE, other]) == manifest.digest_manifests([other, ONE])
