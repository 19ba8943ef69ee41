"""Sorts records into a history: each message's fate, whole calls, and each partition's stays with workers."""

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
from tests.harness.history import Fault, records_of

R = TypeVar("R")

NEVER = float("inf")
CERTAIN_ERRORS = frozenset({"", "SessionLost"})
"""Errors after which the effect of a call is known: it returned, or did nothing."""


class Place(NamedTuple):
    """Where a message is stored."""

    queue: str
    partition: int
    id: str

    @property
    def name(self) -> str:
        return f"{self.queue}/{self.partition}"


class Fate(NamedTuple):
    """The fate of a message as its writer was told it. ``place`` has an id only if it was acknowledged."""

    place: Place
    outcome: Outcome
    post: Post
    sent: Sent


@dataclass(frozen=True)
class Call:
    """A take or a commit. ``answer`` is None if its end was not recorded."""

    asked: Asked
    answer: Answered | None

    @property
    def known(self) -> bool:
        """Whether the call's effect is certain: it succeeded or did nothing. False without an answer."""
        return self.answer is not None and self.answer.error in CERTAIN_ERRORS

    @property
    def end(self) -> float:
        """Time of the answer; NEVER without one."""
        return NEVER if self.answer is None else self.answer.at

    @property
    def owner(self) -> tuple[str, int]:
        return self.asked.worker, self.asked.life

    def version(self, place: str) -> int | None:
        """Returns the version that the call wrote to a place, or None if the answer has none."""
        return None if self.answer is None else self.answer.versions.get(place)


@dataclass
class Stay:
    """A partition's stay with a worker, from the worker's assignment until it no longer owns the partition.

    Attributes:
        offset: Where the worker goes on.
        version: The version that the worker's take made.
        end: When the stay ended; ``NEVER`` if the worker ended before.
        how: ``revoked``, ``lost``, or empty if it ended with the worker.
        handled: The messages handled, in order.
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
    """All records, by kind and in order of time."""

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self.records = sorted(records, key=_start_of)
        self.faults = self._records(Fault)
        self.posts, self.reads = self._records(Post), self._records(Read)
        self.handled, self.observed = self._records(Handled), self._records(Observed)
        self.joined, self.heard, self.ended = self._records(Joined), self._records(Heard), self._records(Ended)

    def _records(self, kind: type[R]) -> list[R]:
        return records_of(self.records, kind)

    # Messages

    @cached_property
    def fates(self) -> dict[str, Fate]:
        """What became of each posted message, by body. Without an id for each message the ids are empty."""
        fates = {}
        for post in self.posts:
            names = post.ids if len(post.ids) == len(post.sent) else [""] * len(post.sent)
            for sent, outcome, name in zip(post.sent, post.outcomes, names, strict=False):
                fates[sent.body] = Fate(Place(post.queue, sent.partition, name), outcome, post, sent)
        return fates

    @cached_property
    def acknowledged(self) -> dict[Place, Fate]:
        """Acknowledged messages by place, without messages whose id is unknown."""
        return {fate.place: fate for fate in self.fates.values() if fate.outcome == "acknowledged" and fate.place.id}

    @cached_property
    def contents(self) -> dict[int, dict[Place, str]]:
        contents: dict[int, dict[Place, str]] = defaultdict(dict)
        for read in self.reads:
            if read.final and read.status == OK:
                contents[read.final] |= {Place(read.queue, one.partition, one.id): one.body for one in read.shown}
        return contents

    @cached_property
    def last_ids(self) -> dict[str, list[str]]:
        """Ids that the highest final read showed, by partition; empty if there was no final read."""
        ids_by_place: dict[str, list[str]] = defaultdict(list)
        for place in self.contents[max(self.contents)] if self.contents else ():
            ids_by_place[place.name].append(place.id)
        return ids_by_place

    # Groups

    @cached_property
    def calls(self) -> list[Call]:
        """Takes and commits with their answers, by time. Releases are only counted (:attr:`release_counts`)."""
        answers = {(each.worker, each.call): each for each in self._records(Answered)}
        asked = (each for each in self._records(Asked) if each.what != "release")
        return [Call(each, answers.get((each.worker, each.call))) for each in asked]

    @cached_property
    def release_counts(self) -> Counter[str]:
        return Counter(place for each in self._records(Asked) if each.what == "release" for place in each.versions)

    @cached_property
    def strays(self) -> list[Handled]:
        """Messages handled outside any stay."""
        in_stays = {id(each) for stay in self.every_stay for each in stay.handled}
        return [each for each in self.handled if id(each) not in in_stays]

    @property
    def every_stay(self) -> list[Stay]:
        return [stay for stays in self.stays.values() for stay in stays]

    @cached_property
    def stays(self) -> dict[str, list[Stay]]:
        takes = self._taken_versions()
        stays: dict[str, list[Stay]] = defaultdict(list)
        current: dict[tuple[str, str], Stay] = {}
        for record in self.records:
            match record:
                case Assigned(at=at, worker=worker, offsets=offsets):
                    for place, offset in offsets.items():
                        stay = Stay(worker, place, at, offset, _latest_version(takes[worker, place], at))
                        current[worker, place] = stay
                        stays[place].append(stay)
                case Gone(at=at, worker=worker, how=how, places=places):
                    for stay in (current[worker, place] for place in places if (worker, place) in current):
                        stay.end, stay.how = at, how
                case Handled(worker=worker, place=place) if (worker, place) in current:
                    current[worker, place].handled.append(record)
        return stays

    def _taken_versions(self) -> dict[tuple[str, str], list[tuple[float, int]]]:
        takes: dict[tuple[str, str], list[tuple[float, int]]] = defaultdict(list)
        for call in self.calls:
            if call.asked.what == "take" and call.answer is not None:
                for place, version in call.answer.versions.items():
                    if version is not None:
                        takes[call.asked.worker, place].append((call.end, version))
        return takes


def _start_of(record: Record) -> float:
    return record.start if isinstance(record, Post | Read | Fault | Observed) else record.at


def _latest_version(takes: list[tuple[float, int]], at: float) -> int:
    """Returns the version of the last take that ended at ``at`` or before, -1 without one."""
    count = bisect_right(sorted(takes), (at, NEVER))
    return sorted(takes)[count - 1][1] if count else -1
