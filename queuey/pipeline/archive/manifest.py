"""Manifests, commits and paths of an archive. Pure: uses neither Spark nor files.

::

    DIR/archive.json                                                the identity of the archive
    DIR/messages/run=<run>/queue=<name>/bucket=<start>/*.parquet    the messages
    DIR/manifests/queue=<name>/<start>.<run>.json                   a manifest: the files of a bucket
    DIR/runs/<run>.json                                             the commit of a run, which makes its manifests valid
    DIR/runs.json                                                   the runs that began within a day
    DIR/_staging/…                                                 unfinished work; Spark does not see it

Files are written once and never changed, except ``runs.json``. A manifest is valid if its run has a commit. A bucket
consists of the files that its manifest lists. A manifest names the manifests that it replaces. So all buckets of a run
change in one step, and earlier readers still find the replaced files, which are removed a day later.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from hashlib import blake2b
from typing import TypeVar
from urllib.parse import unquote

import msgspec

from queuey.model.errors import QueueyError
from queuey.pipeline.archive import buckets
from queuey.pipeline.archive.buckets import ArchiveBucket

T = TypeVar("T")

FORMAT = 1
HASH_NAME = "xxhash64: xor and sum over the messages"
Key = tuple[str, str]
"""Queue and bucket name."""
MESSAGES_DIRECTORY = "messages"
MANIFESTS_DIRECTORY = "manifests"
_ESCAPED_CHARACTERS = frozenset([*map(chr, range(1, 0x20)), *"\"#%'*/:=?\\{[]^\x7f"])
_HASH_MODULUS = 1 << 64


class ArchiveDamaged(QueueyError):
    """An archive does not match its manifests, or the directory is not an archive."""


class Archive(msgspec.Struct, frozen=True, kw_only=True):
    """Identity of an archive, fixed when it is created.

    Attributes:
        application: The application that owns the archived queues.
        seconds: Width of its buckets.
    """

    application: str
    seconds: int
    format: int = FORMAT

    def describe_differences(self, other: Archive) -> list[str]:
        names = {"application": "application", "seconds": "width of buckets (s)"}
        pairs = [(text, getattr(self, name), getattr(other, name)) for name, text in names.items()]
        return [f"its {text} is {mine}, not {theirs}" for text, mine, theirs in pairs if mine != theirs]


class MessageSetHash(msgspec.Struct, frozen=True):
    """A hash of a set of messages that does not depend on their order: 64-bit hashes of each, combined twice.

    Each message's hash covers its partition, id, body and type, content type and headers, but not its expiry.

    Attributes:
        xor: Exclusive or of the hashes, 16 hex digits.
        sum: Sum of the hashes modulo 2^64, 16 hex digits.
    """

    xor: str
    sum: str

    @classmethod
    def from_xor_and_sum(cls, xor: int, total: int) -> MessageSetHash:
        return cls(f"{xor % _HASH_MODULUS:016x}", f"{total % _HASH_MODULUS:016x}")


class PartitionEnds(msgspec.Struct, frozen=True):
    """Messages of one partition in a bucket: count, first and last id."""

    count: int
    first: str
    last: str


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """Counts and hash of the messages in one bucket.

    Attributes:
        count: Number of messages.
        bytes: Total bytes of their bodies.
        hash: See :class:`MessageSetHash`.
        partitions: Partition number -> its messages.
        expires: The earliest and the latest expiry (ISO 8601, UTC).
    """

    count: int
    bytes: int
    hash: MessageSetHash
    partitions: dict[int, PartitionEnds]
    expires: tuple[str, str]

    def has_same_messages(self, other: Summary | None) -> bool:
        return other is not None and (self.count, self.bytes, self.hash) == (other.count, other.bytes, other.hash)


class ArchivedQueue(msgspec.Struct, frozen=True, kw_only=True):
    """The queue as it was when it was archived, with the options that a replay needs to create a copy.

    Attributes:
        uid, qid: Hexadecimal ids; another ``qid`` means that the queue was purged or created anew since.
        ttl: Seconds; None if the queue has the deployment's TTL.
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
    """Description of one complete bucket.

    Attributes:
        run: The run that wrote the manifest and the files.
        replaces: The runs of the bucket's manifests that this one replaces; their messages are in it.
        queue: Name of the queue.
        bucket: Start of the bucket, as in the names of directories.
        seconds: Width of the bucket.
        source: The queue when it was archived.
        summary: Summary of the messages, read back from the files.
        files: The files of the bucket.
        archived: When it was archived (ISO 8601, UTC).
        verified: True if a second scan of the store found no other messages.
        expiring: True if messages may have expired before: the bucket was older than the queue's TTL when it was
            archived.
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
    algorithm: str = HASH_NAME
    format: int = FORMAT

    def __post_init__(self) -> None:
        buckets.parse_bucket(self.bucket, self.seconds)

    @property
    def span(self) -> ArchiveBucket:
        return buckets.parse_bucket(self.bucket, self.seconds)

    @property
    def key(self) -> Key:
        return self.queue, self.bucket

    @property
    def path(self) -> str:
        return manifest_path(self.queue, self.bucket, self.run)

    @property
    def data_paths(self) -> list[str]:
        place = messages_path(self.queue, self.bucket, self.run)
        return [f"{place}/{file.name}" for file in self.files]


class BegunRun(msgspec.Struct, frozen=True):
    """A run, and when it began, in seconds since 1970."""

    run: str
    at: float


class Runs(msgspec.Struct, frozen=True, kw_only=True):
    """The content of ``runs.json``: the runs that began within a day, the oldest first."""

    runs: tuple[BegunRun, ...] = ()
    format: int = FORMAT


class CommittedBucket(msgspec.Struct, frozen=True):
    """A bucket that a run has written, and the runs whose manifests it replaces."""

    queue: str
    bucket: str
    replaces: tuple[str, ...] = ()


class Commit(msgspec.Struct, frozen=True, kw_only=True):
    """The buckets that a run has written. The commit is written after their manifests and makes them valid."""

    run: str
    buckets: tuple[CommittedBucket, ...]
    format: int = FORMAT


def encode(value: Archive | Manifest | Runs | Commit) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=1).decode() + "\n"


def decode(text: str, path: str, kind: type[T]) -> T:
    """Decodes a file of an archive.

    Args:
        text: The content.
        path: Path of the file, for errors.
        kind: The expected type.

    Raises:
        ArchiveDamaged: The file has other content, or another format version.
    """
    try:
        version = msgspec.json.decode(text, type=_Versioned).format
        if version != FORMAT:
            raise ArchiveDamaged(f"{path}: written in format {version}, but this program reads format {FORMAT}")
        return msgspec.json.decode(text, type=kind)
    except msgspec.MsgspecError as error:
        raise ArchiveDamaged(f"{path}: {error}") from error


def escape_name(name: str) -> str:
    return "".join(f"%{ord(letter):02X}" if letter in _ESCAPED_CHARACTERS else letter for letter in name)


def run_path(run: str) -> str:
    return f"{MESSAGES_DIRECTORY}/run={run}"


def messages_path(queue: str, bucket: str, run: str) -> str:
    return f"{run_path(run)}/{bucket_path(queue, bucket)}"


def bucket_path(queue: str, bucket: str) -> str:
    return f"{queue_path(queue)}/bucket={bucket}"


def parse_data_path(path: str) -> Key | None:
    match path.split("/"):
        case [queue, bucket, name] if name[0] not in "._":
            return parse_queue(queue), bucket.removeprefix("bucket=")
    return None


def queue_path(queue: str) -> str:
    return f"queue={escape_name(queue)}"


def parse_queue(directory: str) -> str:
    return unquote(directory.removeprefix("queue="))


def manifest_path(queue: str, bucket: str, run: str) -> str:
    return f"{MANIFESTS_DIRECTORY}/{queue_path(queue)}/{bucket}.{run}.json"


def parse_manifest_name(file: str) -> tuple[str, str] | None:
    match file.split("."):
        case [bucket, run, "json"] if bucket and run and not bucket.startswith("_"):
            return bucket, run
    return None


def select_not_replaced(versions: Iterable[Manifest]) -> list[Manifest]:
    """Returns one bucket's manifests that no other replaces; several if runs overlapped."""
    manifests = list(versions)
    replaced = {run for version in manifests for run in version.replaces}
    return [version for version in manifests if version.run not in replaced]


def digest_manifests(manifests: Iterable[Manifest]) -> str:
    """Returns a digest of the archived messages, 32 hex digits, independent of when and where they were archived."""
    lines = sorted(
        f"{m.bucket} {m.seconds} {m.summary.count} {msgspec.json.encode(m.summary.hash)!r} {m.queue}\n"
        for m in manifests
    )
    return blake2b("".join(lines).encode(), digest_size=16).hexdigest()


def format_time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


class _Versioned(msgspec.Struct):
    format: int
