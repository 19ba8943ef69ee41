"""What happened, as plain records: a line of JSON each, in a file of each process, judged afterwards.

Times are seconds of CLOCK_BOOTTIME, which is the same in all processes and goes on while one is stopped. A *worker*
here is one process, with a name that none had before; a *place* is a partition as ``queue/number``; a *life* is one
session of a worker, counted from 1.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from qdo.coordination import Event
from qdo.partitions import Partition

What = Literal["take", "commit", "release"]
FaultKind = Literal[
    "join", "leave", "kill", "pause", "expire", "silence", "cut", "leader", "hush", "grow", "mute", "stall"
]
"""Of one worker: ``join``, ``leave``, ``kill``, ``pause`` (its process is stopped and goes on), ``expire`` (its session
is ended), ``silence`` (nothing passes between it and its coordination), ``stall`` (its threads were kept from running,
nobody knows by what). Of the coordination service: ``cut`` (nobody can reach it), ``leader`` (its leader is killed),
``hush`` (its leader is stopped and goes on). Of the queues: ``grow`` (one gets more partitions), ``mute`` (their
service is stopped and goes on)."""


class Handled(Struct, frozen=True, tag="handled", gc=False):
    """A handler was called."""

    at: float
    worker: str
    place: str
    id: str
    body: str


class Joined(Struct, frozen=True, tag="joined"):
    """A session begins. ``session`` is what the service needs to end it."""

    at: float
    worker: str
    life: int
    member: str
    session: str


class Heard(Struct, frozen=True, tag="heard"):
    """A session told of its state."""

    at: float
    worker: str
    life: int
    event: Event


class Asked(Struct, frozen=True, tag="asked"):
    """A session was asked for something.

    Attributes:
        call: Its number in the worker.
        versions: Per place: of a commit what it is fenced by, else 0.
        ids: Of a commit, per place.
    """

    at: float
    worker: str
    life: int
    call: int
    what: What
    versions: Mapping[str, int]
    ids: Mapping[str, str] = {}


class Answered(Struct, frozen=True, tag="answered"):
    """How a call ended.

    Attributes:
        error: The code of what it raised; empty: it returned.
        versions: Per place: what is held now; None: it is not held.
        ids: Of a taking: the offsets that were found.
    """

    at: float
    worker: str
    call: int
    error: str = ""
    versions: Mapping[str, int | None] = {}
    ids: Mapping[str, str | None] = {}


class Assigned(Struct, frozen=True, tag="assigned"):
    """A worker was told that places are its own, with the offsets from which it goes on."""

    at: float
    worker: str
    offsets: Mapping[str, str | None]


class Gone(Struct, frozen=True, tag="gone"):
    """A worker is done with places: it handed them back, or was told that they are lost."""

    at: float
    worker: str
    how: Literal["revoked", "lost"]
    places: Sequence[str]


class Posted(Struct, frozen=True, tag="posted"):
    """Messages were stored, one id each; none: it is not known whether they were."""

    at: float
    place: str
    bodies: Sequence[str]
    ids: Sequence[str] = ()


class Fault(Struct, frozen=True, tag="fault"):
    """Something was done, from the moment before it to the moment it was undone.

    Attributes:
        worker: To whom; empty: to all.
    """

    start: float
    end: float
    kind: FaultKind
    worker: str = ""


class Ended(Struct, frozen=True, tag="ended"):
    """A worker's process has ended.

    Attributes:
        told: When it was told to leave, by SIGTERM; None: it ended by itself.
        code: Negative: by a signal. None: it did not end in time.
    """

    at: float
    worker: str
    told: float | None
    code: int | None


class Observed(Struct, frozen=True, tag="observed"):
    """Somebody from outside has looked at the offsets; those of all places that have one."""

    start: float
    end: float
    offsets: Mapping[str, str]


class Content(Struct, frozen=True, tag="content"):
    """All messages of a place in the end, in order, each with id and body."""

    place: str
    messages: Sequence[tuple[str, str]]


Record = Handled | Joined | Heard | Asked | Answered | Assigned | Gone | Posted | Fault | Ended | Observed | Content

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Record)


def place_of(partition: Partition) -> str:
    """Names a partition; the tests have one service and one application."""
    return f"{partition.queue.name}/{partition.number}"


class Journal:
    """A file to which several threads and processes append records, each in one write."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def add(self, record: Record) -> None:
        """Appends a record."""
        os.write(self._descriptor, _encoder.encode(record) + b"\n")

    def close(self) -> None:
        """Closes the file."""
        os.close(self._descriptor)


class Tail:
    """Reads a journal while it grows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0

    def new(self) -> Iterator[Record]:
        """Yields what was appended since the last time; a line that is not complete is left for later."""
        if not self._path.exists():
            return
        with self._path.open("rb") as lines:
            lines.seek(self._at)
            data = lines.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._at += len(whole)
        for line in whole.splitlines():
            yield _decoder.decode(line)


class Follower:
    """Reads all journals of a directory while they grow."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._tails: dict[Path, Tail] = {}

    def new(self) -> Iterator[Record]:
        """Yields what was appended since the last time."""
        for path in sorted(self._directory.glob("*.jsonl")):
            yield from self._tails.setdefault(path, Tail(path)).new()
