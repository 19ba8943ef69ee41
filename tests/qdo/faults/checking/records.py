"""The records of workers, of producers, and of who looks at a group from outside.

A *worker* here is one process, with a name that none had before; a *place* is a partition as
``queue/number``; a *life* is one session of a worker, counted from 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import Struct

from qdo.coordination import Event
from qdo.partitions import Partition
from tests.harness.history import Fault

What = Literal["take", "commit", "release"]


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


def place_of(partition: Partition) -> str:
    """Names a partition; the tests have one service and one application."""
    return f"{partition.queue.name}/{partition.number}"
