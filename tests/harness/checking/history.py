"""Records put in order: each message's fate, calls in one piece, and each partition's stays with workers."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, TypeVar

from tests.harness.checking.records import (
    OK,
    Answered,
    Asked,
    Assigned,
    Ended,
    Gone,
    Handled,
    Heard,
    Joined,
    Observed,
    Outcome,
    Post,
    Read,
    Record,
    Sent,
)
from tests.harness.history import Fault, of

R = TypeVar("R")

NEVER = float("inf")
UNDONE = frozenset({"", "SessionLost"})
"""How calls end of which it is known what they did: with an answer, or not at all."""


class Place(NamedTuple):
    """Where a message lies."""

    queue: str
    partition: int
    id: str

    @property
    def name(self) -> str:
        """The name of its partition."""
        return f"{self.queue}/{self.partition}"


class Fate(NamedTuple):
    """What became of a message as its writer was told. ``place`` has no id unless it was acknowledged."""

    place: Place
    outcome: Outcome
    post: Post
    sent: Sent


@dataclass(frozen=True)
class Call:
    """A taking, a commit or a release; ``answer`` is None if its end was not recorded."""

    asked: Asked
    answer: Answered | None

    @property
    def known(self) -> bool:
        """Whether it is known what was done."""
        return self.answer is not None and self.answer.error in UNDONE

    @property
    def end(self) -> float:
        """When it was answered."""
        return NEVER if self.answer is None else self.answer.at

    @property
    def owner(self) -> tuple[str, int]:
        """The session."""
        return self.asked.worker, self.asked.life

    def version(self, place: str) -> int | None:
        """The version that it gave a place's offset, as far as that is known."""
        return None if self.answer is None else self.answer.versions.get(place)


@dataclass
class Stay:
    """A partition's stay with a worker, from the worker's assignment until it is done with the partition.

    Attributes:
        offset: From where it goes on.
        version: Of the taking.
        end: When it was over; never, if the worker ended before.
        how: ``revoked``, ``lost``, or empty: it ended with the worker.
        handled: What was handled, in order.
    """

    worker: str
    place: str
    start: float
    offset: str | None
    version: int
    end: float = NEVER
    how: str = ""
    handled: list[Handled] = field(default_factory=list)


class History:
    """Everything that was recorded, by kind and time."""

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self.records = sorted(records, key=_when)
        self.faults = self._of(Fault)
        self.posts, self.reads = self._of(Post), self._of(Read)
        self.handled, self.observed = self._of(Handled), self._of(Observed)
        self.joined, self.heard, self.ended = self._of(Joined), self._of(Heard), self._of(Ended)

    def _of(self, kind: type[R]) -> list[R]:
        return of(self.records, kind)

    # Messages

    @cached_property
    def fates(self) -> dict[str, Fate]:
        """What became of each message, by its body."""
        found = {}
        for post in self.posts:
            names = post.ids if len(post.ids) == len(post.sent) else [""] * len(post.sent)
            for sent, outcome, name in zip(post.sent, post.outcomes, names, strict=False):
                found[sent.body] = Fate(Place(post.queue, sent.partition, name), outcome, post, sent)
        return found

    @cached_property
    def acknowledged(self) -> dict[Place, Fate]:
        """The messages whose posts were acknowledged."""
        return {fate.place: fate for fate in self.fates.values() if fate.outcome == "acknowledged" and fate.place.id}

    @cached_property
    def contents(self) -> dict[int, dict[Place, str]]:
        """What each of the full reads at the end found: places with bodies."""
        found: dict[int, dict[Place, str]] = defaultdict(dict)
        for read in self.reads:
            if read.final and read.status == OK:
                found[read.final] |= {Place(read.queue, one.partition, one.id): one.body for one in read.shown}
        return found

    @cached_property
    def last(self) -> dict[str, list[str]]:
        """By place the ids that the last full read found, in order."""
        found: dict[str, list[str]] = defaultdict(list)
        for place in self.contents[max(self.contents)] if self.contents else ():
            found[place.name].append(place.id)
        return found

    # Groups

    @cached_property
    def calls(self) -> list[Call]:
        """Takings and commits, by when they were asked for."""
        answers = {(each.worker, each.call): each for each in self._of(Answered)}
        asked = (each for each in self._of(Asked) if each.what != "release")
        return [Call(each, answers.get((each.worker, each.call))) for each in asked]

    @cached_property
    def released(self) -> Counter[str]:
        """How often each place was to be released."""
        return Counter(place for each in self._of(Asked) if each.what == "release" for place in each.versions)

    @cached_property
    def strays(self) -> list[Handled]:
        """What was handled without any stay."""
        kept = {id(each) for stay in self.every_stay for each in stay.handled}
        return [each for each in self.handled if id(each) not in kept]

    @property
    def every_stay(self) -> list[Stay]:
        """The stays of all places."""
        return [stay for stays in self.stays.values() for stay in stays]

    @cached_property
    def stays(self) -> dict[str, list[Stay]]:
        """By place the stays with workers, in the order of their beginnings, and what was handled in each."""
        claimed = self._taken()
        stays: dict[str, list[Stay]] = defaultdict(list)
        mine: dict[tuple[str, str], Stay] = {}
        for record in self.records:
            match record:
                case Assigned(at=at, worker=worker, offsets=offsets):
                    for place, offset in offsets.items():
                        stay = Stay(worker, place, at, offset, _latest(claimed[worker, place], at))
                        mine[worker, place] = stay
                        stays[place].append(stay)
                case Gone(at=at, worker=worker, how=how, places=places):
                    for stay in (mine[worker, place] for place in places if (worker, place) in mine):
                        stay.end, stay.how = at, how
                case Handled(worker=worker, place=place) if (worker, place) in mine:
                    mine[worker, place].handled.append(record)
        return stays

    def _taken(self) -> dict[tuple[str, str], list[tuple[float, int]]]:
        """Returns by worker and place when it took the place, with the versions."""
        claimed: dict[tuple[str, str], list[tuple[float, int]]] = defaultdict(list)
        for call in self.calls:
            if call.asked.what == "take" and call.answer is not None:
                for place, version in call.answer.versions.items():
                    if version is not None:
                        claimed[call.asked.worker, place].append((call.end, version))
        return claimed


def _when(record: Record) -> float:
    return record.start if isinstance(record, Post | Read | Fault | Observed) else record.at


def _latest(claimed: list[tuple[float, int]], at: float) -> int:
    """Returns the version of the last taking before an instant, -1 if there was none."""
    found = bisect_right(sorted(claimed), (at, NEVER))
    return sorted(claimed)[found - 1][1] if found else -1
