"""What members are told: pure functions of the plan, of what a member names, and of the rows of offsets."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from typing import NamedTuple

from queuey import ids
from queuey.api.groups import Heartbeat, Partitions, Taken, ToGiveBack
from queuey.groups.ownership import OwnedOffset
from queuey.groups.state import GroupState, Member, PlannedQueue

MAX_PARTITIONS, MAX_SIZE = 1000, 240 << 10
"""Max partitions of an answer, and its max bytes, about."""
_ENTRY_SIZE = 150

Rows = Mapping[int, OwnedOffset]


class Targets:
    """The targets of a plan, by member and queue.

    Attributes:
        epoch: Of the plan.
        queues: By name.
    """

    def __init__(self, state: GroupState) -> None:
        self.epoch = state.head.epoch
        self.queues: dict[str, PlannedQueue] = {}
        self._of: dict[int, dict[str, dict[int, int]]] = {}
        for planned in state.plan.values():
            self.queues[planned.name] = planned
            for number, target in planned.targets.items():
                self._of.setdefault(target.member, {}).setdefault(planned.name, {})[number] = target.epoch

    def names(self, member: int) -> set[str]:
        return set(self._of.get(member, ()))

    def missing(self, member: int, owned: Partitions) -> dict[str, set[int]]:
        """Returns partitions that are planned for a member and that it does not name as its own.

        One that it names under an epoch not below its target's is its own: an ownership ends only by its own word.
        """
        found = {}
        for name, targets in self._of.get(member, {}).items():
            named = owned.get(name, {})
            if numbers := {n for n, epoch in targets.items() if not self._is_own(epoch, named.get(n, 0))}:
                found[name] = numbers
        return found

    def missing_of(self, queue: str, owned: Mapping[int, Partitions]) -> set[int]:
        """Returns the partitions of a queue that are planned for some members and that these do not name as theirs."""
        targets = self.queues[queue].targets if queue in self.queues else {}
        return {
            number
            for number, (member, epoch) in ((n, (each.member, each.epoch)) for n, each in targets.items())
            if member in owned and not self._is_own(epoch, owned[member].get(queue, {}).get(number, 0))
        }

    def _is_own(self, target: int, named: int) -> bool:
        return target <= named <= self.epoch

    def foreign(self, member: int, owned: Partitions) -> set[str]:
        """Returns queues of which a member names partitions that are not planned for it."""
        mine = self._of.get(member, {})
        return {name for name, named in owned.items() if not named.keys() <= mine.get(name, {}).keys()}

    def is_overdue(self, member: Member, held: Partitions, now: int) -> bool:
        """Returns whether a member should have given back a partition by a time (ms), less S."""
        for name in self.foreign(member.number, held):
            targets = self.queues[name].targets if name in self.queues else {}
            for number in held[name]:
                target = targets.get(number)
                if target is not None and target.member != member.number and target.epoch + member.revoke < now:
                    return True
        return False


class Told(NamedTuple):
    """The parts of an answer."""

    take: dict[str, dict[int, Taken]]
    give_back: dict[str, dict[int, ToGiveBack]]
    lost: dict[str, list[int]]

    @property
    def given_back(self) -> frozenset[tuple[str, int, int]]:
        """Names, numbers and epochs of what is to be given back."""
        return frozenset(
            (name, number, each.epoch) for name, some in self.give_back.items() for number, each in some.items()
        )


def tell(targets: Targets, member: Member, beat: Heartbeat, rows: Mapping[str, Rows], now: int) -> Told:
    """Compares what a member names with what it owns.

    Args:
        targets: Of the plan.
        member: The member.
        beat: What it names.
        rows: Of the queues in motion, read after the heartbeat came.
        now: The clock at that time (ms).
    """
    told = Told({}, {}, {})
    count = size = 0
    for name, there in rows.items():
        named = beat.owned.get(name, {})
        planned = targets.queues[name].targets if name in targets.queues else {}
        for number in sorted(named.keys() | there.keys()):
            if count >= MAX_PARTITIONS or size >= MAX_SIZE:
                return told
            row = there.get(number)
            epoch = row.epoch if row is not None and row.owner == member.number else None
            target = planned.get(number)
            before = count
            if number in named and named[number] != epoch:
                told.lost.setdefault(name, []).append(number)
                count += 1
            if row is not None and epoch is not None:
                if target is None or target.member != member.number:
                    ends = now if target is None else target.epoch
                    within = min(max(0, ends + member.revoke - now), member.revoke) / 1000
                    told.give_back.setdefault(name, {})[number] = ToGiveBack(epoch, within)
                    count += 1
                elif named.get(number) != epoch:
                    told.take.setdefault(name, {})[number] = _taken(row)
                    size += 2 * len(row.note or b"")
                    count += 1
            size += (count - before) * (_ENTRY_SIZE + len(name))
    return told


def _taken(row: OwnedOffset) -> Taken:
    offset = None if row.position is None else ids.to_hex(row.position)
    return Taken(row.epoch, offset, row.came, None if row.note is None else b64encode(row.note).decode())
