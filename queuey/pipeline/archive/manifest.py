"""Manifests, commits and paths of an archive: pure, without Spark and without files.

::

    DIR/archive.json                                                what kind of archive this is
    DIR/messages/run=<run>/queue=<name>/bucket=<start>/*.parquet    the messages
    DIR/manifests/queue=<name>/<start>.<run>.json                   a manifest: which files a bucket is
    DIR/runs/<run>.json                                             the commit of a run: its manifests count
    DIR/runs.json                                                   which runs began within a day
    DIR/_staging/…, DIR/_incoming/…                                 what is being worked on; Spark does not see these

Files are written once and never changed, apart from ``runs.json``. A manifest counts if its run has a commit, and a
bucket is what its manifest lists. A manifest names those that it replaces. So all buckets of a run change in one step,
and a reader that began before still finds the files of before: they are removed a day later.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from hashlib import blake2b
from typing import TypeVar
from urllib.parse import unquote

import msgspec

from queuey.errors import QueueyError
from queuey.pipeline.archive import buckets
from queuey.pipeline.archive.buckets import ArchiveBucket

T = TypeVar("T")

FORMAT = 1
HASH = "xxhash64: xor and sum over the messages"
Key = tuple[str, str]
"""Queue, and name of a bucket."""
MESSAGES = "messages"
MANIFESTS = "manifests"
_ESCAPED = frozenset([*map(chr, range(1, 0x20)), *"\"#%'*/:=?\\{[]^\x7f"])
_FULL = 1 << 64


class ArchiveDamaged(QueueyError):
    """An archive does not match its manifests, or the directory is no archive."""

    code = "ArchiveDamaged"


class Archive(msgspec.Struct, frozen=True, kw_only=True):
    """Identity of an archive, fixed when it is created.

    Attributes:
        application: The application that owns the archived queues.
        seconds: How wide its buckets are.
    """

    application: str
    seconds: int
    format: int = FORMAT

    def differing(self, other: Archive) -> list[str]:
        """Describes the differences to another one."""
        names = {"application": "application", "seconds": "width of buckets (s)"}
        pairs = [(text, getattr(self, name), getattr(other, name)) for name, text in names.items()]
        return [f"its {text} is {mine}, not {theirs}" for text, mine, theirs in pairs if mine != theirs]


class MessageSetHash(msgspec.Struct, frozen=True):
    """A hash of a set of messages that does not depend on their order: 64-bit hashes of each, combined twice.

    Each message's hash covers its partition, id, body and type, content type and headers, not when it expires.

    Attributes:
        xor: The exclusive or of the hashes, 16 hex digits.
        sum: Their sum modulo 2^64, 16 hex digits.
    """

    xor: str
    sum: str

    @classmethod
    def combined(cls, xor: int, total: int) -> MessageSetHash:
        """Returns the digest of signed hashes whose xor and sum are these."""
        return cls(f"{xor % _FULL:016x}", f"{total % _FULL:016x}")


class PartitionEnds(msgspec.Struct, frozen=True):
    """Messages of one partition in a bucket: count, first and last id."""

    count: int
    first: str
    last: str


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """Counts and hash of the messages in one bucket.

    Attributes:
        count: How many.
        bytes: Of their bodies.
        hash: See :class:`MessageSetHash`.
        partitions: By number.
        expires: When the first and the last of them expires (ISO 8601, UTC).
    """

    count: int
    bytes: int
    hash: MessageSetHash
    partitions: dict[int, PartitionEnds]
    expires: tuple[str, str]

    def same(self, other: Summary | None) -> bool:
        """Returns whether both describe the same messages."""
        return other is not None and (self.count, self.bytes, self.hash) == (other.count, other.bytes, other.hash)


class ArchivedQueue(msgspec.Struct, frozen=True, kw_only=True):
    """The queue as it was when it was archived: what replaying needs to make one like it.

    Attributes:
        uid, qid: Hexadecimal; another ``qid`` means that the queue was purged or made anew since.
        ttl: In seconds; None: the deployment's.
    """

    uid: str
    qid: str
    partitions: int
    consistency: str
    ttl: int | None


class DataFile(msgspec.Struct, frozen=True, order=True):
    """A data file of a bucket: its name in the bucket's directory, and its length in bytes."""

    name: str
    bytes: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """One complete bucket.

    Attributes:
        run: The run that wrote it and its files.
        replaces: The runs of all manifests of this bucket that it takes the place of; their messages are in it.
        queue: Its name.
        bucket: Its start, as in the names of directories.
        seconds: How wide it is.
        source: The queue.
        summary: The messages, read back from the files.
        files: The files of the bucket.
        archived: When (ISO 8601, UTC).
        verified: A second scan of the store has found nothing that is not here.
        expiring: The queue's TTL was shorter than the bucket's age when it was archived, so that messages may have
            expired before.
    """

    queue: str
    bucket: str
    seconds: int
    source: ArchivedQueue
    summary: Summary
    files: tuple[DataFile, ...]
    archived: str
    verified: bool
    expiring: bool
    run: str
    replaces: tuple[str, ...] = ()
    algorithm: str = HASH
    format: int = FORMAT

    def __post_init__(self) -> None:
        buckets.named(self.bucket, self.seconds)

    @property
    def span(self) -> ArchiveBucket:
        return buckets.named(self.bucket, self.seconds)

    @property
    def key(self) -> Key:
        return self.queue, self.bucket

    @property
    def path(self) -> str:
        """Path of the manifest below the archive's directory."""
        return manifest_path(self.queue, self.bucket, self.run)

    @property
    def data_paths(self) -> list[str]:
        """Paths of the data files below the archive's directory."""
        place = messages_path(self.queue, self.bucket, self.run)
        return [f"{place}/{file.name}" for file in self.files]


class Begun(msgspec.Struct, frozen=True):
    """A run that began, at an instant in seconds since 1970."""

    run: str
    at: float


class Runs(msgspec.Struct, frozen=True, kw_only=True):
    """The runs that began within a day, the oldest first: what ``runs.json`` holds."""

    runs: tuple[Begun, ...] = ()
    format: int = FORMAT


class CommittedBucket(msgspec.Struct, frozen=True):
    """A bucket that a run has written, and the runs whose manifests of it are replaced."""

    queue: str
    bucket: str
    replaces: tuple[str, ...] = ()


class Commit(msgspec.Struct, frozen=True, kw_only=True):
    """The buckets that a run has added. It is written after their manifests, which count from then on."""

    run: str
    buckets: tuple[CommittedBucket, ...]
    format: int = FORMAT


def encode(value: Archive | Manifest | Runs | Commit) -> str:
    """Returns JSON, indented for people."""
    return msgspec.json.format(msgspec.json.encode(value), indent=1).decode() + "\n"


def decode(text: str, path: str, kind: type[T]) -> T:
    """Reads a file of an archive.

    Args:
        text: The file's.
        path: Where it is, for the error.
        kind: What it has to be.

    Raises:
        ArchiveDamaged: It is something else, or of another format.
    """
    try:
        version = msgspec.json.decode(text, type=_Versioned).format
        if version != FORMAT:
            raise ArchiveDamaged(f"{path}: written in format {version}, this program knows {FORMAT}")
        return msgspec.json.decode(text, type=kind)
    except msgspec.MsgspecError as error:
        raise ArchiveDamaged(f"{path}: {error}") from error


def escaped(name: str) -> str:
    """Escapes a queue's name for a directory, as Spark does for partition columns."""
    return "".join(f"%{ord(letter):02X}" if letter in _ESCAPED else letter for letter in name)


def run_path(run: str) -> str:
    return f"{MESSAGES}/run={run}"


def messages_path(queue: str, bucket: str, run: str) -> str:
    return f"{run_path(run)}/{bucket_path(queue, bucket)}"


def bucket_path(queue: str, bucket: str) -> str:
    return f"{queue_path(queue)}/bucket={bucket}"


def bucket_in(path: str) -> Key | None:
    """Returns queue and bucket of a data file's path; None: another file."""
    match path.split("/"):
        case [queue, bucket, name] if name[0] not in "._":
            return queue_of(queue), bucket.removeprefix("bucket=")
    return None


def queue_path(queue: str) -> str:
    return f"queue={escaped(queue)}"


def queue_of(directory: str) -> str:
    return unquote(directory.removeprefix("queue="))


def manifest_path(queue: str, bucket: str, run: str) -> str:
    return f"{MANIFESTS}/{queue_path(queue)}/{bucket}.{run}.json"


def version_of(file: str) -> tuple[str, str] | None:
    """Returns bucket and run of a manifest's file name; None: another file, such as one being written."""
    match file.split("."):
        case [bucket, run, "json"] if bucket and run and not bucket.startswith("_"):
            return bucket, run
    return None


def standing(found: Iterable[Manifest]) -> list[Manifest]:
    """Returns the manifests of one bucket that no other replaces. Runs that overlapped leave several."""
    manifests = list(found)
    replaced = {run for one in manifests for run in one.replaces}
    return [one for one in manifests if one.run not in replaced]


def identity(manifests: Iterable[Manifest]) -> str:
    """Returns 32 hex digits that name these messages: the same for the same, whenever and wherever archived."""
    lines = sorted(
        f"{m.bucket} {m.seconds} {m.summary.count} {msgspec.json.encode(m.summary.hash)!r} {m.queue}\n"
        for m in manifests
    )
    return blake2b("".join(lines).encode(), digest_size=16).hexdigest()


def iso(seconds: float) -> str:
    """Formats seconds since 1970 in UTC, with microseconds."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


class _Versioned(msgspec.Struct):
    format: int
