"""Records put in order: calls in one piece, and each partition's stays with workers."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.harness.history import Fault, of
from tests.qdo.faults.checking.records import (
    Answered,
    Asked,
    Assigned,
    Content,
    Ended,
    Gone,
    Handled,
    Heard,
    Joined,
    Observed,
    Posted,
    Record,
)

NEVER = float("inf")
UNDONE = frozenset({"", "SessionLost"})
"""How calls end of which it is known what they did: with an answer, or not at all."""


@dataclass(frozen=True)
class Call:
    """A taking, a commit or a release; ``answer`` is None if its end was not written down."""

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
    """A partition's stay with a worker, from being told of it until being done with it.

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
    """Everything that was recorded, by kind and time.

    Attributes:
        contents: Of each place in the end, the messages in order, each with id and body.
        calls: Takings and commits, by when they were asked for.
        released: How often each place was to be released.
        stays: By place, in the order of their beginnings.
        strays: What was handled without any stay.
    """

    def __init__(self, records: Iterable[Record]) -> None:
        self.records = sorted(records, key=_when)
        self.handled = of(self.records, Handled)
        self.joined = of(self.records, Joined)
        self.heard = of(self.records, Heard)
        self.posted = of(self.records, Posted)
        self.faults = of(self.records, Fault)
        self.ended = of(self.records, Ended)
        self.observed = of(self.records, Observed)
        self.contents = {each.place: list(each.messages) for each in of(self.records, Content)}
        answers = {(each.worker, each.call): each for each in of(self.records, Answered)}
        self.calls = [
            Call(each, answers.get((each.worker, each.call)))
            for each in of(self.records, Asked)
            if each.what != "release"
        ]
        self.released = Counter(
            place for each in of(self.records, Asked) if each.what == "release" for place in each.versions
        )
        self.stays: dict[str, list[Stay]] = defaultdict(list)
        self.strays: list[Handled] = []
        self._live()

    def _live(self) -> None:
        """Finds the stays, and what was handled in each."""
        claimed = self._taken()
        by_worker: dict[tuple[str, str], list[Stay]] = defaultdict(list)
        for record in self.records:
            match record:
                case Assigned(at=at, worker=worker, offsets=offsets):
                    for place, offset in offsets.items():
                        stay = Stay(worker, place, at, offset, _latest(claimed[worker, place], at))
                        by_worker[worker, place].append(stay)
                        self.stays[place].append(stay)
                case Gone(at=at, worker=worker, how=how, places=places):
                    for place in places:
                        if mine := by_worker.get((worker, place)):
                            mine[-1].end, mine[-1].how = at, how
                case Handled(worker=worker, place=place):
                    if mine := by_worker.get((worker, place)):
                        mine[-1].handled.append(record)
                    else:
                        self.strays.append(record)
                case _:
                    continue

    def _taken(self) -> dict[tuple[str, str], list[tuple[float, int]]]:
        """Returns by worker and place when it took the place, with the versions."""
        claimed: dict[tuple[str, str], list[tuple[float, int]]] = defaultdict(list)
        for call in self.calls:
            if call.asked.what == "take" and call.answer is not None:
                for place, version in call.answer.versions.items():
                    if version is not None:
                        claimed[call.asked.worker, place].append((call.end, version))
        return claimed


def _latest(claimed: list[tuple[float, int]], at: float) -> int:
    """Returns the version of the last taking before an instant, -1 if there was none."""
    found = bisect_right(sorted(claimed), (at, NEVER))
    return sorted(claimed)[found - 1][1] if found else -1


def _when(record: Record) -> float:
    match record:
        case Fault(start=start) | Observed(start=start):
            return start
        case Content():
            return NEVER
        case _:
            return record.at
