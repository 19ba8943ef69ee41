"""The records of all runs. Each is a call with its answer, or an event that a process saw or caused.

A *worker* is one process, under a name that is never reused. A *place* is a partition as ``queue/number``. A *life* is
one session of a worker, counted from 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import Struct

from qdo.group.records import Event
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
    """One attempt to post. It is never repeated.

    Attributes:
        start, end: When it was sent, and when its answer had arrived.
        web: The web process it was sent to; empty: any.
        after: The id sent as ``X-After``.
        status: The HTTP status, or ``ONLY_SENT``.
        ids: One per message if acknowledged, else empty.
        outcomes: One per message.
        retry_after: Whether the answer had that header.
        note: The text of the answer or error.
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
    """One page that a reader requested.

    Attributes:
        reader: The reader's name. Its reads form a chain: each starts where the last successful one ended.
        partitions: The requested partitions.
        since: Start position per partition; empty: from the beginning.
        merge: The page is one list in time order over the partitions.
        horizon: The horizon in the answer, as an id.
        next: Position per partition at which to go on.
        final: 0 for a reader that follows the queue, else the number of this full read at the end.
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
    """A session began. The service needs ``session`` to end it."""

    at: float
    worker: str
    life: int
    member: str
    session: str


class Heard(Struct, frozen=True, tag="heard"):
    """A session reported its state."""

    at: float
    worker: str
    life: int
    event: Event


class Asked(Struct, frozen=True, tag="asked"):
    """A session was asked to do something.

    Attributes:
        call: The number of the call in its worker.
        versions: Per place, the version that fences a commit; 0 for other calls.
        ids: Per place, the offset that a commit records.
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
        error: The code of the error it raised; empty: it returned.
        versions: Per place, the version held now; None if the place is not held.
        ids: Per place, the offset that a ``take`` read.
    """

    at: float
    worker: str
    call: int
    error: str = ""
    versions: Mapping[str, int | None] = {}
    ids: Mapping[str, str | None] = {}


class Assigned(Struct, frozen=True, tag="assigned"):
    """A worker was assigned places, with the offsets at which it goes on."""

    at: float
    worker: str
    offsets: Mapping[str, str | None]


class Gone(Struct, frozen=True, tag="gone"):
    """A worker no longer owns places: it handed them back, or was told that it lost them."""

    at: float
    worker: str
    how: Literal["revoked", "lost"]
    places: Sequence[str]


class Ended(Struct, frozen=True, tag="ended"):
    """A worker's process has ended.

    Attributes:
        told: When it was sent SIGTERM; None if it ended by itself.
        code: The exit code; negative: a signal. None: it did not end in time.
    """

    at: float
    worker: str
    told: float | None
    code: int | None


class Observed(Struct, frozen=True, tag="observed"):
    """An outside reader has read the offsets of all places that have one."""

    start: float
    end: float
    offsets: Mapping[str, str]


Record = Post | Read | Fault | Handled | Joined | Heard | Asked | Answered | Assigned | Gone | Ended | Observed


def place_of(partition: Partition) -> str:
    return f"{partition.queue.name}/{partition.number}"
