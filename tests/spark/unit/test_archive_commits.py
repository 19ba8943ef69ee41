"""Manifests and commits of archives: runs that are killed or overlap at every step, on files like an object store's."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuey.pipeline.archive import manifest
from queuey.pipeline.archive.directory import MIN_UNREFERENCED_AGE, ArchiveDirectory
from queuey.pipeline.archive.hadoop_files import DirectoryEntry, HadoopFiles
from queuey.pipeline.archive.manifest import (
    Archive,
    ArchiveDamaged,
    ArchivedQueue,
    DataFile,
    Key,
    Manifest,
    MessageSetHash,
    PartitionEnds,
    Summary,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


ABOUT = Archive(application="acme", seconds=3600)
KEYS = (("orders", "20261120T140000Z"), ("orders", "20261120T150000Z"), ("a/b", "20261120T140000Z"))
Content = dict[Key, set[str]]


class Killed(BaseException):
    """The simulated end of a run's process."""


class ObjectStore:
    """Files as in an object store: written atomically, found by name at once, listed late, never renamed.

    It counts the requests, but for those of the hook before each.

    Attributes:
        before: Called before each request with its number.
        late: Listings lack files that are written from now on.
    """

    root = "store://archive"

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self.before: Callable[[int], None] = lambda number: None
        self.late = False
        self._unlisted: set[str] = set()
        self._requests = 0

    def path(self, path: str) -> str:
        return f"{self.root}/{path}"

    def read(self, path: str) -> str | None:
        self._count()
        return self.texts.get(path)

    def exists(self, path: str) -> bool:
        self._count()
        return path in self.texts

    def write(self, path: str, text: str) -> None:
        self._count()
        if self.late and path not in self.texts:
            self._unlisted.add(path)
        self.texts[path] = text

    def delete(self, path: str) -> None:
        self._count()
        for name in [path, *(f"{path}/{name}" for name in self._list_names(path))]:
            self.texts.pop(name, None)

    def list_tree(self, path: str) -> dict[str, int]:
        self._count()
        return {name: len(self.texts[f"{path}/{name}"]) for name in self._list_names(path)}

    def list(self, path: str) -> list[DirectoryEntry]:
        self._count()
        names = {(name.partition("/")[0], "/" in name) for name in self._list_names(path)}
        return sorted(DirectoryEntry(name, directory, 0) for name, directory in names)

    def settle(self) -> None:
        self.late = False
        self._unlisted.clear()

    def requests(self, work: Callable[[], object], before: Callable[[int], None]) -> int:
        """Does work with a hook before each request, until it ends or is killed; returns the number of its requests."""
        self._requests, self.before = 0, before
        with suppress(Killed):
            work()
        self.before = lambda number: None
        return self._requests

    def _list_names(self, path: str) -> Collection[str]:
        names = sorted(self.texts.keys() - self._unlisted)
        return [name.removeprefix(f"{path}/") for name in names if name.startswith(f"{path}/")]

    def _count(self) -> None:
        before, self._requests = self.before, self._requests + 1
        self.before = lambda number: None  # requests of the hook do not count
        number = self._requests
        before(number)
        self._requests, self.before = number, before


def open_archive(store: ObjectStore) -> ArchiveDirectory:
    return ArchiveDirectory(cast("SparkSession", None), cast("HadoopFiles", store), ABOUT, max_serial_files=1000)


def archive_run(store: ObjectStore, name: str, messages: Content, now: float = 0.0) -> None:
    archive = open_archive(store)
    archive.begin_run(name, now)
    older = archive.find_present_versions(messages, [])
    manifests = []
    for key, ids in messages.items():
        sealed_before = older.get(key)
        held = ids.union(*(store.texts[path].split() for path in sealed_before.paths)) if sealed_before else ids
        store.write(f"{manifest.messages_path(*key, name)}/part.parquet", text := " ".join(sorted(held)))
        manifests.append(make_manifest(key, name, len(text), len(held), sealed_before.runs if sealed_before else ()))
    archive.write_manifests(manifests)
    archive.commit_run(name, manifests)


def make_manifest(key: Key, name: str, size: int, count: int, replaces: tuple[str, ...] = (), **more: Any) -> Manifest:  # noqa: ANN401 - any fields
    return Manifest(
        run=name,
        replaces=replaces,
        queue=key[0],
        bucket=key[1],
        seconds=3600,
        source=ArchivedQueue(uid="1", qid="2", partitions=1, consistency="strong", ttl=None),
        summary=Summary(count=count, bytes=1, hash=MessageSetHash("0", "0"), partitions={}, expires=("", "")),
        files=(DataFile("part.parquet", size),),
        archived="",
        verified=True,
        expiring=False,
        **more,
    )


def read_archive(store: ObjectStore) -> Content:
    archive = open_archive(store)
    keys = [(queue, bucket) for queue in archive.list_queue_names() for bucket in archive.list_bucket_names(queue)]
    return {
        one.key: {text for path in one.data_paths for text in store.texts[path].split()}
        for one in archive.read_manifests(keys)
    }


def in_each_bucket(*ids: str) -> Content:
    return {key: set(ids) for key in KEYS}


def both(one: Content, other: Content) -> Content:
    return {key: one.get(key, set()) | other.get(key, set()) for key in {*one, *other}}


def kill_at(store: ObjectStore, work: Callable[[], object], number: int) -> bool:
    """Kills work at one of its requests; returns whether it made that many."""

    def kill(now: int) -> None:
        if now == number:
            raise Killed

    return store.requests(work, kill) == number


STEPS = range(1, 200)
"""More requests than a run makes."""


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(("runs", "now", "steps"), [("a", 1.0, 12), ("abc", MIN_UNREFERENCED_AGE + 5.0, 20)])
def test_a_run_killed_at_every_step(*, runs: str, now: float, steps: int, late: bool) -> None:
    """A killed run has archived all of its buckets or none, the next run continues from there, and no file stays.

    So it is, too, if it removes old files meanwhile, and if no listing has the new files yet.
    """
    for number in STEPS:
        store = ObjectStore()
        for count, name in enumerate(runs):
            archive_run(store, name, in_each_bucket(name), float(count))
        store.late = late
        more = kill_at(store, partial(archive_run, store, "killed", in_each_bucket("k"), now), number)
        archived = in_each_bucket(*runs, *(["k"] if "runs/killed.json" in store.texts else []))
        assert read_archive(store) == archived, number
        archive_run(store, "next", in_each_bucket("n"), now + 1.0)
        archived = both(archived, in_each_bucket("n"))
        assert read_archive(store) == archived, number
        store.settle()
        archive_run(store, "last", {KEYS[0]: {"l"}}, now + MIN_UNREFERENCED_AGE + 10.0)
        assert read_archive(store) == both(archived, {KEYS[0]: {"l"}}), number
        old = [text for name in (*runs, "killed") for text in (f"run={name}/", f".{name}.")]
        assert not [name for name in store.texts if any(text in name for text in old)], number
        if not more:
            break
    assert steps < number < STEPS[-1]


def test_runs_that_overlap_at_every_step() -> None:
    """If a run overlaps in spite of the lease, no message is lost, and readers get an error until the next run."""
    forks = 0
    for number in STEPS:
        store = ObjectStore()
        archive_run(store, "r0", in_each_bucket("a"))
        done = in_each_bucket("a", "b")
        between = partial(_archive_at_request, store, number)
        more = store.requests(partial(archive_run, store, "r1", in_each_bucket("b"), 1.0), between) >= number
        if more:
            done = both(done, in_each_bucket("c"))
        damaged: list[str] = []
        manifests = open_archive(store).read_manifests(KEYS, damaged)
        assert all("overlapped; archive it with --again" in text for text in damaged), damaged
        assert len(manifests) + len(damaged) == len(KEYS), number
        forks += len(damaged)
        assert damaged or read_archive(store) == done, number
        archive_run(store, "r3", in_each_bucket("d"), 3.0)
        assert read_archive(store) == both(done, in_each_bucket("d")), number
        if not more:
            break
    assert forks > len(KEYS)
    assert 12 < number < STEPS[-1]


def _archive_at_request(store: ObjectStore, at: int, now: int) -> None:
    if now == at:
        archive_run(store, "r2", in_each_bucket("c"), 2.0)


def test_readers_during_a_run() -> None:
    """At every step of a run readers find either all old buckets or all new ones; old files stay for a day."""
    store = ObjectStore()
    archive_run(store, "r0", in_each_bucket("a"))
    archive = open_archive(store)
    old = archive.read_manifests(KEYS)

    def look(number: int) -> None:
        assert read_archive(store) in (in_each_bucket("a"), in_each_bucket("a", "b")), number

    assert store.requests(partial(archive_run, store, "r1", in_each_bucket("b"), 1.0), look) > 12
    archive_run(store, "r2", in_each_bucket("c"), MIN_UNREFERENCED_AGE)
    assert all(path in store.texts for one in old for path in one.data_paths)


def test_what_is_damaged() -> None:
    """A damaged manifest stops readers; a run uses the files beside it, and reports lost ones."""
    store = ObjectStore()
    archive_run(store, "r0", in_each_bucket("a", "b"))
    first, second, third = (manifest.manifest_path(*key, "r0") for key in KEYS)
    store.texts[first] = store.texts[first][:-40]
    store.texts[second] = store.texts[third]
    for key in KEYS[:2]:
        with pytest.raises(ArchiveDamaged, match=r"20261120T1[45]0000Z\.r0\.json"):
            open_archive(store).read_manifests([key])
    del store.texts[lost := f"{manifest.messages_path(*KEYS[2], 'r0')}/part.parquet"]
    damaged: list[str] = []
    older = open_archive(store).find_present_versions(KEYS, damaged)
    assert damaged == [f"store://archive/{lost} is missing"]
    assert [len(older[key].paths) for key in KEYS] == [1, 1, 0]
    archive_run(store, "r1", in_each_bucket("c"), 1.0)
    store.texts = {path: text for path, text in store.texts.items() if ".r0.json" not in path}
    assert read_archive(store) == {KEYS[0]: {"a", "b", "c"}, KEYS[1]: {"a", "b", "c"}, KEYS[2]: {"c"}}


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
    for other in ("_20261120T140000Z.r1.json.new", "20261120T140000Z.json", ".20261120T140000Z.json.crc", "notes.txt"):
        assert manifest.parse_manifest_name(other) is None


def test_identity() -> None:
    """The identity of messages depends on their content, not on the time and way of archiving."""
    replace = msgspec.structs.replace
    again = replace(ONE, archived="later", files=(), source=replace(ONE.source, qid="9"))
    other = replace(ONE, summary=replace(SUMMARY, hash=MessageSetHash.from_xor_and_sum(1, 2)))
    assert manifest.digest_manifests([ONE]) == manifest.digest_manifests([again])
    assert len({manifest.digest_manifests(some) for some in ([ONE], [other], [ONE, other], [])}) == 4
    assert manifest.digest_manifests([ONE, other]) == manifest.digest_manifests([other, ONE])
