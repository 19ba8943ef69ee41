"""What an archive says about itself: the pure part, without Spark and without files.

::

    DIR/archive.json                                    what kind of archive this is
    DIR/messages/queue=<name>/bucket=<start>/*.parquet  the messages (or a Delta or Iceberg table)
    DIR/manifests/queue=<name>/<start>.json             one manifest for each bucket that is complete
    DIR/_staging/…, DIR/_incoming/…                     what is being worked on; Spark does not see these

A manifest is written after its bucket's messages and removed before they are replaced. So a bucket with a manifest is
complete, and one without is not there.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Literal, TypeVar

import msgspec

from queuey.errors import QueueyError
from queuey.spark.jobs.archive import buckets
from queuey.spark.jobs.archive.buckets import ArchiveBucket

T = TypeVar("T")

FORMAT = 1
HASH = "xxhash64: xor and sum over the messages"
Kept = Literal["parquet", "delta", "iceberg"]
_ESCAPED = frozenset([*map(chr, range(1, 0x20)), *"\"#%'*/:=?\\{[]^\x7f"])
_FULL = 1 << 64


class ArchiveDamaged(QueueyError):
    """An archive is not what it says it is, or no archive at all."""

    code = "ArchiveDamaged"


class Archive(msgspec.Struct, frozen=True, kw_only=True):
    """What an archive is, fixed when it is begun.

    Attributes:
        application: Whose queues are in it.
        seconds: How wide its buckets are.
        data: How its messages are kept.
    """

    application: str
    seconds: int
    data: Kept
    format: int = FORMAT

    def differing(self, other: Archive) -> list[str]:
        """Returns in words how another one would differ."""
        names = {"application": "application", "seconds": "width of buckets (s)", "data": "format"}
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
    """What one partition has in a bucket: how many messages, and the ids of the first and the last."""

    count: int
    first: str
    last: str


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """What the messages of one bucket are.

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
        """Returns whether both are of the same messages."""
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
    """A data file of a bucket and its length in bytes."""

    name: str
    bytes: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """One complete bucket.

    Attributes:
        queue: Its name.
        bucket: Its start, as in the names of directories.
        seconds: How wide it is.
        source: The queue.
        summary: The messages, read back from the files.
        files: The files of the bucket; empty where a table keeps them.
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
    algorithm: str = HASH
    format: int = FORMAT

    @property
    def span(self) -> ArchiveBucket:
        """The bucket."""
        return buckets.named(self.bucket, self.seconds)

    @property
    def key(self) -> tuple[str, str]:
        """Queue and bucket."""
        return self.queue, self.bucket


def encode(value: Archive | Manifest) -> str:
    """Returns JSON for files, to be read by people too."""
    return msgspec.json.format(msgspec.json.encode(value), indent=1).decode() + "\n"


def decode_archive(text: str, path: str) -> Archive:
    """Reads ``archive.json``.

    Raises:
        ArchiveDamaged: It is none, or of a format that this program does not know.
    """
    return _decoded(text, path, Archive)


def decode(text: str, path: str) -> Manifest:
    """Reads a manifest.

    Raises:
        ArchiveDamaged: It is none, or of a format that this program does not know.
    """
    found = _decoded(text, path, Manifest)
    try:
        found.span  # noqa: B018 - a name that is none raises
    except ValueError as error:
        raise ArchiveDamaged(f"{path}: {error}") from error
    return found


def escaped(name: str) -> str:
    """Returns a queue's name as it stands in names of directories: as Spark writes the values of partition columns."""
    return "".join(f"%{ord(letter):02X}" if letter in _ESCAPED else letter for letter in name)


def messages_path(queue: str, bucket: str) -> str:
    """Returns where a bucket's messages are, from the archive's directory."""
    return f"messages/{bucket_path(queue, bucket)}"


def bucket_path(queue: str, bucket: str) -> str:
    """Returns where a bucket is under a directory of messages."""
    return f"{queue_path(queue)}/bucket={bucket}"


def queue_path(queue: str) -> str:
    """Returns where a queue is under a directory of messages, or of manifests."""
    return f"queue={escaped(queue)}"


def manifest_path(queue: str, bucket: str) -> str:
    """Returns where a bucket's manifest is, from the archive's directory."""
    return f"manifests/{queue_path(queue)}/{bucket}.json"


def bucket_of(file: str) -> str | None:
    """Returns which bucket a manifest of this file name is of; None: it is no manifest (one being written, say)."""
    name, dot, ending = file.partition(".")
    return name if dot and ending == "json" and not name.startswith("_") else None


def identity(manifests: Iterable[Manifest]) -> str:
    """Returns 32 hex digits that name these messages: the same for the same, whenever and wherever archived."""
    lines = sorted(
        f"{m.bucket} {m.seconds} {m.summary.count} {msgspec.json.encode(m.summary.hash)!r} {m.queue}\n"
        for m in manifests
    )
    return blake2b("".join(lines).encode(), digest_size=16).hexdigest()


def iso(seconds: float) -> str:
    """Returns an instant, in seconds since 1970, with microseconds in UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _decoded(text: str, path: str, kind: type[T]) -> T:
    try:
        version = msgspec.json.decode(text, type=_Versioned).format
        if version != FORMAT:
            raise ArchiveDamaged(f"{path}: written in format {version}, this program knows {FORMAT}")
        return msgspec.json.decode(text, type=kind)
    except msgspec.MsgspecError as error:
        raise ArchiveDamaged(f"{path}: {error}") from error


class _Versioned(msgspec.Struct):
    format: int
