"""Answers to heartbeats: pure functions of the plan, of what a member names, and of the rows of offsets."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator, Mapping

from queuey.api.groups import Heartbeat, HeartbeatAnswer, Partitions, Taken, ToGiveBack
from queuey.groups.rules.group_state import GroupState, JoinedMember, PlannedQueue
from queuey.model import ids
from queuey.model.groups import OwnedOffset

MAX_ANSWER_PARTITIONS, MAX_ANSWER_BYTES = 1000, 240 << 10
"""Max partitions of an answer, and its approximate max bytes."""
_ENTRY_BYTES = 150
_NONE: Mapping[int, int] = {}

Rows = Mapping[int, OwnedOffset]


class Targets:
    """The targets of a plan, by member and queue.

    Attributes:
        epoch: Epoch of the plan.
        queues: Planned queues by name.
    """

    def __init__(self, state: GroupState) -> None:
        self.epoch = state.head.epoch
        self.queues: dict[str, PlannedQueue] = {}
        self._by_member: dict[int, dict[str, dict[int, int]]] = {}
        for planned in state.plan.values():
            self.queues[planned.name] = planned
            for number, target in planned.targets.items():
                self._by_member.setdefault(target.member, {}).setdefault(planned.name, {})[number] = target.epoch

    def count_queues(self, member: int) -> int:
        return len(self._by_member.get(member, ()))

    def find_queues(self, member: int) -> set[str]:
        return set(self._by_member.get(member, ()))

    def find_missing(self, member: int, owned: Partitions) -> Iterator[str]:
        """Yields the queues in which a member does not name all partitions that are planned for it."""
        for name, targets in self._by_member.get(member, {}).items():
            # Most are alike, which costs no call.
            if not targets.items() <= owned.get(name, _NONE).items() and self.find_missing_in(member, name, owned):
                yield name

    def find_missing_in(self, member: int, name: str, owned: Partitions) -> set[int]:
        """Returns the partitions of a queue that are planned for a member and that it does not name as its own.

        A partition that it names under an epoch from the target's to the plan's is its own: only it ends its ownership.
        """
        targets, epochs = self._by_member.get(member, {}).get(name, _NONE), owned.get(name, _NONE)
        return {n for n, epoch in targets.items() if not epoch <= epochs.get(n, 0) <= self.epoch}

    def find_foreign(self, member: int, owned: Partitions) -> Iterator[str]:
        """Yields the queues of which a member names partitions that are not planned for it."""
        planned = self._by_member.get(member, {})
        return (name for name, epochs in owned.items() if not epochs.keys() <= planned.get(name, _NONE).keys())

    def is_overdue(self, member: JoinedMember, held: Partitions, now: int) -> bool:
        """Returns whether, before ``now`` (ms), a member should have given back a partition planned for another."""
        return any(
            target.member != member.number and target.epoch + member.revoke < now
            for name in self.queues.keys() & self.find_foreign(member.number, held)
            for number, target in self.queues[name].targets.items()
            if number in held[name]
        )


def answer_heartbeat(
    targets: Targets, member: JoinedMember, heartbeat: Heartbeat, rows: Mapping[str, Rows], *, seen: int, now: int
) -> HeartbeatAnswer:
    """Compares what a member names with what it owns: what it has lost, is to give back, and may take.

    Stops at ``MAX_ANSWER_PARTITIONS`` or ``MAX_ANSWER_BYTES``; the next answer has more.

    Args:
        targets: Targets of the plan.
        member: The member.
        heartbeat: Its heartbeat.
        rows: Rows of the queues to compare, read after the heartbeat was recorded.
        seen: When the member was last seen (ms).
        now: Clock at the arrival of the heartbeat (ms).
    """
    answer = HeartbeatAnswer(targets.epoch, (seen + member.session - now) / 1000, member.session / 3000)
    count = size = 0
    for name, recorded in rows.items():
        owned_epochs = heartbeat.owned.get(name, {})
        planned = targets.queues[name].targets if name in targets.queues else {}
        for number in sorted(owned_epochs.keys() | recorded.keys()):
            row, target = recorded.get(number, OwnedOffset(number)), planned.get(number)
            is_known = row.owner == member.number and owned_epochs.get(number) == row.epoch
            if number in owned_epochs and not is_known:
                answer.lost.setdefault(name, []).append(number)
            elif row.owner != member.number:
                continue
            if row.owner == member.number and (target is None or target.member != member.number):
                ends = member.revoke + (now if target is None else target.epoch)
                within = min(max(0, ends - now), member.revoke) / 1000
                answer.give_back.setdefault(name, {})[number] = ToGiveBack(row.epoch, within)
            elif row.owner == member.number and not is_known:
                answer.take.setdefault(name, {})[number] = _make_taken(row)
            elif is_known:
                continue
            count += 1
            size += _ENTRY_BYTES + len(name) + 2 * len(row.note or b"")
            if count >= MAX_ANSWER_PARTITIONS or size >= MAX_ANSWER_BYTES:
                return answer
    return answer


def find_highest_epoch(heartbeat: Heartbeat) -> int:
    """Returns the highest epoch under which a heartbeat names partitions, or 0."""
    queues = filter(None, (*heartbeat.owned.values(), *heartbeat.given_back.values()))
    return max(map(max, map(dict.values, queues)), default=0)


def list_give_backs(answer: HeartbeatAnswer) -> frozenset[tuple[str, int, int]]:
    return frozenset((name, n, give.epoch) for name, numbers in answer.give_back.items() for n, give in numbers.items())


def _make_taken(row: OwnedOffset) -> Taken:
    offset = None if row.position is None else ids.to_hex(row.position)
    return Taken(row.epoch, offset, row.came, None if row.note is None else b64encode(row.note).decode())
