"""What a history amounts to in numbers, and whether that is enough to have shown anything."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise
from typing import NamedTuple

from tests.qdo.faults.checking.checker import Limits, cause_of, duplicates
from tests.qdo.faults.checking.history import History


class Counts(NamedTuple):
    """Numbers of a history.

    Attributes:
        events: What was done, by kind.
        stalls: Times when a process was kept from running by something else.
        messages: That are there in the end, all of them handled if no rule is broken.
        unknown: Posts of which it is not known whether they were stored.
        twice: Messages that were handled again, by the kind of failure that explains it.
        workers: Processes.
        lives: Sessions.
        stays: How often a partition came to a worker.
        lost: How often it was lost, instead of handed back.
        commits, refused, doubtful: Commits of a partition that were recorded, that were refused, whose end is unknown.
        pause: The longest time between two handlings of one partition, in seconds.
    """

    events: dict[str, int]
    stalls: int
    messages: int
    unknown: int
    twice: dict[str, int]
    workers: int
    lives: int
    stays: int
    lost: int
    commits: int
    refused: int
    doubtful: int
    pause: float

    def __str__(self) -> str:
        """One line for a report."""
        return (
            f"{sum(self.events.values())} events ({_listed(self.events)}; {self.stalls} stalls); {self.messages} "
            f"messages, {sum(self.twice.values())} handled again ({_listed(self.twice)}); {self.workers} workers with "
            f"{self.lives} sessions, {self.stays} stays of partitions, {self.lost} of them lost; {self.commits} "
            f"commits, {self.refused} refused, {self.doubtful} in doubt; longest pause {self.pause:.2f} s"
        )


def count(history: History, limits: Limits = Limits()) -> Counts:  # noqa: B008 - immutable
    """Counts."""
    commits = [call for call in history.calls if call.asked.what == "commit"]
    results = [version for call in commits if call.answer for version in call.answer.versions.values()]
    causes = (cause_of(history, first, again, limits) for first, again in duplicates(history))
    stays = [stay for stays in history.stays.values() for stay in stays]
    return Counts(
        events=dict(Counter(fault.kind for fault in history.faults if fault.kind != "stall")),
        stalls=sum(fault.kind == "stall" for fault in history.faults),
        messages=sum(map(len, history.contents.values())),
        unknown=sum(not posted.ids for posted in history.posted),
        twice=dict(Counter(cause.kind if cause else "nothing" for cause in causes)),
        workers=len({joined.worker for joined in history.joined}),
        lives=len(history.joined),
        stays=len(stays),
        lost=sum(stay.how == "lost" for stay in stays),
        commits=sum(version is not None for version in results),
        refused=sum(version is None for version in results),
        doubtful=sum(len(call.asked.ids) for call in commits if not call.known),
        pause=max(pauses(history).values(), default=0.0),
    )


def pauses(history: History) -> dict[str, float]:
    """Returns by place the longest time between two handlings, in seconds."""
    handled: dict[str, list[float]] = defaultdict(list)
    for each in history.handled:
        handled[each.place].append(each.at)
    return {
        place: max((after - before for before, after in pairwise(times)), default=0.0)
        for place, times in handled.items()
    }


def vacuous(counts: Counts, **least: int) -> list[str]:
    """Returns what there was too little of: events of a kind, or whatever else is counted."""
    found = counts._asdict() | counts.events
    totals = {name: sum(each.values()) if isinstance(each, dict) else each for name, each in found.items()}
    return [
        f"{name}: {totals.get(name, 0)}, not {number}" for name, number in least.items() if totals.get(name, 0) < number
    ]


def _listed(numbers: dict[str, int]) -> str:
    return ", ".join(f"{number} {name}" for name, number in sorted(numbers.items())) or "none"
