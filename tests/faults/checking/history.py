"""What happened: every request of writers and readers with its answer, and every fault, as plain records.

A history is written down while it happens and judged afterwards (:mod:`tests.faults.checking.checker`). Times are
seconds of CLOCK_BOOTTIME, which goes on while a process is stopped.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

Outcome = Literal["acknowledged", "none", "unknown"]
FaultKind = Literal["kill", "pause", "cut"]

ONLY_SENT = 0
"""The status of a request that got no answer: the connection failed, or the client gave up."""


class Sent(Struct, frozen=True, array_like=True, gc=False):
    """One message of a post. ``delay`` is 0 for a message that is due at once."""

    body: str
    partition: int
    delay: float = 0.0


class Post(Struct, frozen=True, tag="post"):
    """One attempt to post, never repeated.

    Attributes:
        start, end: When it was sent and when its answer had come.
        web: Which web process was asked.
        after: The id given as ``X-After``.
        status: Of HTTP, or ``ONLY_SENT``.
        ids: One per message when acknowledged, else none.
        outcomes: One per message.
        retry_after: Whether the answer had that header.
        note: What the answer or the error said.
    """

    start: float
    end: float
    web: str
    writer: str
    queue: str
    sent: tuple[Sent, ...]
    status: int
    outcomes: tuple[Outcome, ...]
    ids: tuple[str, ...] = ()
    after: str | None = None
    retry_after: bool = False
    note: str = ""


class Shown(Struct, frozen=True, array_like=True, gc=False):
    """One message of a page."""

    partition: int
    id: str
    body: str


class Read(Struct, frozen=True, tag="read"):
    """One page that a reader asked for.

    Attributes:
        reader: Whose reads form one chain: each goes on where the last successful one ended.
        partitions: Which were asked for.
        since: Position per partition at which the read started; empty: from the beginning.
        merge: The page is one list in time order over the partitions.
        horizon: Of the answer, as an id.
        next: Position per partition from which to go on.
        final: 0 for a reader that follows the queue; else which of the full reads at the end this is.
    """

    start: float
    end: float
    web: str
    reader: str
    queue: str
    partitions: tuple[int, ...]
    status: int
    since: dict[int, str] = {}
    merge: bool = False
    horizon: str = ""
    shown: tuple[Shown, ...] = ()
    next: dict[int, str] = {}
    retry_after: bool = False
    final: int = 0
    note: str = ""


class Fault(Struct, frozen=True, tag="fault"):
    """Something that was done to a web process, node or link, from the moment before it to the moment it was undone."""

    start: float
    end: float
    target: str
    kind: FaultKind


Event = Post | Read | Fault


class History(Struct, frozen=True):
    """All records, each kind by start."""

    posts: tuple[Post, ...] = ()
    reads: tuple[Read, ...] = ()
    faults: tuple[Fault, ...] = ()


def history_of(events: Iterable[Event]) -> History:
    """Sorts records into a history."""
    events = sorted(events, key=lambda event: event.start)
    return History(
        tuple(event for event in events if isinstance(event, Post)),
        tuple(event for event in events if isinstance(event, Read)),
        tuple(event for event in events if isinstance(event, Fault)),
    )


def write(history: History, path: Path) -> None:
    """Writes a history as lines of JSON, one a record, for looking into it and judging it again."""
    encoder = msgspec.json.Encoder()
    with path.open("wb") as lines:
        for event in (*history.faults, *history.posts, *history.reads):
            lines.write(encoder.encode(event) + b"\n")


def read(path: Path) -> History:
    """Reads what :func:`write` wrote."""
    decoder = msgspec.json.Decoder(Event)
    return history_of(decoder.decode(line) for line in path.read_bytes().splitlines())


def now() -> float:
    """Seconds since boot, time asleep included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Recorder:
    """Takes records from any thread."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._lock = threading.Lock()

    def add(self, event: Event) -> None:
        """Keeps a record."""
        with self._lock:
            self._events.append(event)

    def acknowledged(self) -> int:
        """How many messages were acknowledged so far."""
        with self._lock:
            posts = [event for event in self._events if isinstance(event, Post)]
        return sum(len(post.ids) for post in posts)

    def history(self) -> History:
        """Everything recorded so far."""
        with self._lock:
            return history_of(self._events)
