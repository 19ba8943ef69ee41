"""The records of all runs: each is a call with its answer, or something that a process saw or did.

A *worker* is one process, with a name that none had before; a *place* is a partition as ``queue/number``; a *life* is
one session of a worker, counted from 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import Struct

from qdo.coordination import Event
from qdo.partitions import Partition
from tests.harness.history import Fault

Outcome = Literal["acknowledged", "none", "unknown"]
What = Literal["take", "commit", "release"]

ONLY_SENT = 0
"""The status of a request that got no answer: the connection failed, or the client gave up."""
OK, CREATED, UNAVAILABLE = 200, 201, 503


# Writers and readers of messages


class Sent(Struct, frozen=True, array_like=True, gc=False):
    """One message of a post. ``delay`` is 0 for a message that is due at once."""

    body: str
    partition: int
    delay: float = 0.0


class Post(Struct, frozen=True, tag="post"):
    """One attempt to post, never repeated.

    Attributes:
        start, end: When it was sent and when its answer had come.
        web: Which web process was asked; empty: any.
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


# Workers of groups


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
    """Somebody from outside has read the offsets; those of all places that have one."""

    start: float
    end: float
    offsets: Mapping[str, str]


Record = Post | Read | Fault | Handled | Joined | Heard | Asked | Answered | Assigned | Gone | Ended | Observed


def place_of(partition: Partition) -> str:
    """Names a partition; the tests have one service and one application."""
    return f"{partition.queue.name}/{partition.number}"
