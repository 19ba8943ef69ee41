"""The records of writers and readers: every request with its answer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from msgspec import Struct

from tests.harness.history import Fault, of

Outcome = Literal["acknowledged", "none", "unknown"]

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


Event = Post | Read | Fault


class History(Struct, frozen=True):
    """All records, each kind by start."""

    posts: tuple[Post, ...] = ()
    reads: tuple[Read, ...] = ()
    faults: tuple[Fault, ...] = ()


def history_of(events: Iterable[Event]) -> History:
    """Sorts records into a history."""
    events = sorted(events, key=lambda event: event.start)
    return History(tuple(of(events, Post)), tuple(of(events, Read)), tuple(of(events, Fault)))
