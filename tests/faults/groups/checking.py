"""The rules for a group of the service, checked against what its members saw. Times are seconds of one clock."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

from queuey.ids import Position
from tests.harness.checking.rules import Limits, Rules

Place = tuple[str, int]
"""A queue and a partition number."""
End = Literal["", "given back", "left", "over", "gone", "lost", "killed"]
"""How a stay ended: the member gave it back or left, its session was over or the service reported that it had ended,
the service reported another owner, or the member was killed."""
OWN_WORD = frozenset({"given back", "left"})


@dataclass
class Stay:
    """A partition's stay with a member, from the answer that assigned it until the member stopped working on it.

    Attributes:
        life: The member's name and the number of its life.
        instance: The instance name; empty if it has none.
        offset: The offset that it was told, or None.
        came: How the partition came, as it was told.
        handled: The handled messages in order, each with the time at which the member decided to begin.
        released: When the heartbeat that gave it back was answered.
    """

    place: Place
    life: str
    instance: str
    epoch: int
    offset: Position | None
    came: str
    start: float
    end: float = float("inf")
    how: End = ""
    handled: list[tuple[float, Position]] = field(default_factory=list)
    released: float = float("inf")


@dataclass
class Commit:
    """A commit of one partition.

    Attributes:
        outcome: ``done``, ``refused``, or ``unknown``.
    """

    place: Place
    life: str
    epoch: int
    position: Position
    asked: float
    answered: float = float("inf")
    outcome: Literal["done", "refused", "unknown"] = "unknown"


@dataclass
class GroupHistory:
    """What all members saw.

    Attributes:
        observed: By place, the offsets that an outside reader saw, in order.
        messages: By place, the ids of the messages at the end.
        acknowledged: The acknowledged messages by place.
        recorded: The offsets at the end.
    """

    stays: list[Stay] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)
    observed: dict[Place, list[Position]] = field(default_factory=lambda: defaultdict(list))
    messages: dict[Place, list[Position]] = field(default_factory=dict)
    acknowledged: dict[Place, set[Position]] = field(default_factory=dict)
    recorded: dict[Place, Position | None] = field(default_factory=dict)
    lives: int = 0
    calls: int = 0

    def stays_by_place(self) -> Mapping[Place, list[Stay]]:
        stays: dict[Place, list[Stay]] = defaultdict(list)
        for stay in sorted(self.stays, key=lambda stay: (stay.epoch, stay.start)):
            stays[stay.place].append(stay)
        return stays

    def commits_of(self, place: Place) -> list[Commit]:
        return [commit for commit in self.commits if commit.place == place]


Texts = Iterator[str]
"""A rule yields a text for each violation of its docstring."""


def lost(history: GroupHistory, _: Limits) -> Texts:
    """Every acknowledged message exists in the end, and every existing one was handled. The end was read at all."""
    for place, positions in history.messages.items():
        for position in history.acknowledged.get(place, set()) - set(positions):
            yield f"{place} {position} was acknowledged and is not there"
        handled = {position for stay in history.stays if stay.place == place for _, position in stay.handled}
        yield from (f"{place} {position} was not handled" for position in positions if position not in handled)
    if history.acknowledged.keys() - history.messages.keys():
        yield "nobody has read what is there in the end"


def order(history: GroupHistory, _: Limits) -> Texts:
    """A member handles the messages of a partition in order and without a gap, from the offset that it was told."""
    numbers = {
        place: {position: n for n, position in enumerate(positions)} for place, positions in history.messages.items()
    }
    for stay in history.stays:
        numbers_by_position = numbers.get(stay.place, {})
        before = -1 if stay.offset is None else numbers_by_position.get(stay.offset, -1)
        for at, position in stay.handled:
            number = numbers_by_position.get(position, -1)
            if number != before + 1:
                yield f"number {number} after {before} at {at:.3f}: {_describe(stay)}"
            before = number


def alone(history: GroupHistory, _: Limits) -> Texts:
    """A partition is with one member at a time, where each stay lasts as long as the member may work on it (O1).

    Stays of one life, and those of one static instance, may overlap.
    """
    for stays in history.stays_by_place().values():
        by_time = sorted(stays, key=lambda stay: stay.start)
        for stay, next_stay in pairwise(by_time):
            replaced = stay.instance and stay.instance == next_stay.instance
            if next_stay.start < stay.end and stay.life != next_stay.life and not replaced:
                yield f"{_describe(stay)} until {stay.end:.3f} ({stay.how}); {_describe(next_stay)}"


def fenced(history: GroupHistory, _: Limits) -> Texts:
    """A member does not commit under an epoch that it gave back or that was replaced (O2). An epoch has one member."""
    for place, stays in history.stays_by_place().items():
        for commit in history.commits_of(place):
            later = [stay for stay in stays if stay.epoch > commit.epoch and stay.start < commit.asked]
            later += [stay for stay in stays if stay.epoch == commit.epoch and stay.released < commit.asked]
            if commit.outcome == "done" and later:
                yield f"a commit of {commit.life} under {commit.epoch} at {commit.asked:.3f}; {_describe(later[0])}"
        for stay_before, next_stay in pairwise(stays):
            if stay_before.epoch == next_stay.epoch and stay_before.life != next_stay.life:
                yield f"one epoch for two: {_describe(stay_before)}; {_describe(next_stay)}"


def back(history: GroupHistory, _: Limits) -> Texts:
    """Offsets never go back: a new owner goes on at the last recorded commit (O3, O4). Observers see none go back."""
    for place, stays in history.stays_by_place().items():
        commits = history.commits_of(place)
        for stay in stays:
            before = [commit for commit in commits if commit.epoch < stay.epoch]
            own = [commit for commit in commits if commit.epoch == stay.epoch and commit.asked < stay.start]
            yield from _check_offset(stay.offset, [*before, *own], _describe(stay))
        yield from _check_offset(history.recorded.get(place), commits, f"the recorded offset of {place}")
    for place, seen in history.observed.items():
        yield from (
            f"{place} was seen at {earlier}, then at {later}" for earlier, later in pairwise(seen) if later < earlier
        )


def _check_offset(offset: Position | None, commits: Sequence[Commit], what: str) -> Texts:
    """Checks that an offset is at or above each recorded commit, and at one that was sent."""
    done = max((commit.position for commit in commits if commit.outcome == "done"), default=None)
    if done is not None and (offset is None or offset < done):
        yield f"{done} was recorded before: {what}, offset {offset}"
    if offset is not None and offset not in {commit.position for commit in commits if commit.outcome != "refused"}:
        yield f"nobody committed {offset}: {what}"


def word(history: GroupHistory, _: Limits) -> Texts:
    """A partition comes as given back only if its former owner gave it back or left (O4)."""
    for stays in history.stays_by_place().values():
        for former, later in pairwise(stays):
            if later.came == "given back" and former.epoch < later.epoch and former.how not in OWN_WORD:
                # The answer that assigned it to a member that has left since may have been lost.
                left = [stay for stay in history.stays if stay.how == "left" and former.start < stay.end <= later.start]
                if not left:
                    yield (
                        f"{_describe(former)} ended as {former.how!r} at {former.end:.3f}; "
                        f"{_describe(later)} as given back"
                    )


def _describe(stay: Stay) -> str:
    return f"{stay.life} had {stay.place} under {stay.epoch} from {stay.start:.3f}"


GROUPS: Rules = {
    "lost": (lost, "messages"),
    "order": (order, "handled"),
    "alone": (alone, "stays"),
    "fenced": (fenced, "commits"),
    "back": (back, "commits"),
    "word": (word, "given back"),
}


def count_events(history: GroupHistory) -> dict[str, int]:
    """Counts events.

    * ``lives``: joins; ``stays``: stays of partitions with members, by how they began and ended.
    * ``again``: messages handled several times; ``refused``: commits of partitions that another member owned.
    """
    handled = Counter((stay.place, position) for stay in history.stays for _, position in stay.handled)
    outcomes = Counter(commit.outcome for commit in history.commits)
    came = Counter(stay.came for stay in history.stays)
    ends = Counter(f"ended: {stay.how}" for stay in history.stays if stay.how)
    return {
        "calls": history.calls,
        "acknowledged": sum(map(len, history.acknowledged.values())),
        "messages": sum(map(len, history.messages.values())),
        "handled": handled.total(),
        "again": sum(times > 1 for times in handled.values()),
        "lives": history.lives,
        "stays": len(history.stays),
        "given back": came["given back"],
        "taken as lost": came["lost"],
        **ends,
        "commits": len(history.commits),
        "refused": outcomes["refused"],
        "in doubt": outcomes["unknown"],
    }
