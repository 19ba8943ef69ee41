"""The history of a group, and its rules O1 to O7, checked in true time as it happens."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from queuey.groups.rules.group_state import GroupState, read_state
from queuey.model.groups import OwnedOffset, StoredGroup
from queuey.model.ids import Position
from queuey.model.messages import Queue
from queuey.model.rights import MemberCredential, is_allowed
from tests.sim.groups.served.stored import Contents, OffsetsChange, Rows, Stored

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Place = tuple[int, int]
"""The uid of a queue, and a partition number."""
RIGHTS = 10.0
"""Max seconds until a key with reduced rights has lost its partitions."""


@dataclass(eq=False)
class Life:
    """A membership, as the member sees it.

    Attributes:
        number: The number of the member.
        born: The first epoch of its group.
        credential: The credential with which it joined.
        instance: The instance name of a static member, else empty.
        end: When its session ends by its own count (true time).
        holds: The partitions that it works on, with their epochs.
        lost: When an answer said that a partition is lost. The member reads the answer in the same moment or later.
        said: The ownerships that it gave back: queue name, partition and epoch.
        ended: It has crashed, or holds nothing more.
        left: It has left.
        excused: It was replaced, or has lost a right.
        may_go: It has left for good.
    """

    number: int
    born: int
    credential: MemberCredential
    instance: str
    end: float
    holds: dict[Place, int] = field(default_factory=dict)
    lost: dict[Place, float] = field(default_factory=dict)
    said: set[tuple[str, int, int]] = field(default_factory=set)
    ended: bool = False
    left: bool = False
    excused: bool = False
    may_go: bool = False


class History:
    """One history.

    Attributes:
        wrong: The violated rules.
        counts: Counts of events.
        lives: All memberships that a member learned of.
        is_large: The group's states are not checked.
        planned: Called after each plan.
    """

    def __init__(self, stored: Stored) -> None:
        self.stored = stored
        self.wrong: list[str] = []
        self.counts: Counter[str] = Counter()
        self.lives: list[Life] = []
        self.born = 0
        self.narrowed: dict[bytes, float] = {}
        """When the rights of each credential last changed."""
        self.rights: Mapping[bytes, MemberCredential | None] = {}
        self._last: dict[Place, tuple[int, int]] = {}
        """The last owner and epoch of each partition since its offsets were last deleted."""
        self._highest: dict[Place, int] = {}
        """The highest epoch of an ownership of each partition, ever."""
        self._state = GroupState()
        self.is_large = False
        self.planned: Callable[[], object] = lambda: None
        stored.observer = self

    @property
    def now(self) -> float:
        return self.stored.world.now

    def record_violation(self, text: str) -> None:
        self.wrong.append(f"{text} at {self.now - 1000:.3f}")

    def life_of(self, number: int, epoch: int) -> Life | None:
        """Returns the membership with this number that was the last one born up to an epoch, or None."""
        lives = [one for one in self.lives if one.number == number and one.born <= epoch]
        return max(lives, key=lambda one: one.born, default=None)

    def group_changed(self, before: Contents | None, after: Contents | None) -> None:
        """Counts plans, and checks targets and, for members with a grace, instances."""
        if after is None:
            self._state = GroupState()
            return
        self.born = after.head.born
        if before is None or before.head.epoch != after.head.epoch:
            self.counts["plans"] += 1
            self.planned()
        if self.is_large:
            return
        former, self._state = self._state, read_state(StoredGroup(after.head, tuple(after.rows.values())))
        self._check_targets(former, self._state)
        if before is not None:
            self._excuse_replaced(former, self._state)
            self._check_instances(former, self._state)

    def _check_targets(self, before: GroupState, after: GroupState) -> None:
        for uid, planned in after.plan.items():
            for target in planned.targets.values():
                if target.member in after.members and after.members[target.member].state == "new":
                    self.record_violation(f"O5: {target.member} is new, and is to own partitions of {uid}")
        present = {one.subscription for one in after.members.values() if one.state == "present"}
        if after.head.due is not None:
            return
        for uid, planned in before.plan.items():
            queue = self.queue_of(uid)
            if queue is None or not planned.targets or (uid in after.plan and after.plan[uid].targets):
                continue
            readers = (after.subscriptions[slot] for slot in present)
            if any(one.matcher()(queue.name) and may_read_and_claim(one.credential, queue) for one in readers):
                self.record_violation(f"O5: {uid} is there, and nobody is to own it any more")

    def _excuse_replaced(self, before: GroupState, after: GroupState) -> None:
        """Excuses members that were replaced by another one with their instance name.

        Another member with a grace that was present must become absent, and not be gone at once.
        """
        instances = {one.instance for one in after.members.values()}
        for number in before.members.keys() - after.members.keys():
            life = self.life_of(number, before.head.epoch)
            if life is not None and life.instance and life.instance in instances:
                life.excused = True
            member = before.members[number]
            if life is None or life.excused or life.may_go or self.rights.get(life.credential.id) != life.credential:
                continue
            if member.grace and member.state == "present":
                self.record_violation(f"O7: {number} is gone, and was to be absent")

    def _check_instances(self, before: GroupState, after: GroupState) -> None:
        """Checks that absent members keep their targets, and that the next one of an instance gets them.

        Nothing else may move then, if the loads stay even.
        """
        absent = {number for number, one in before.members.items() if one.state == "absent"}
        moved: dict[Place, tuple[int, int]] = {}
        for uid, queue in before.plan.items():
            targets = after.plan[uid].targets if uid in after.plan else {}
            for part, target in queue.targets.items():
                if part in targets and targets[part].member != target.member:
                    moved[uid, part] = target.member, targets[part].member
        for place, (one, other) in moved.items():
            if one in absent and one in after.members and after.members[one].state == "absent":
                self.record_violation(f"O7: {other} has the target {place} of {one}, which is absent")
        new = [one for number, one in after.members.items() if one.state == "present" != self._state_of(before, number)]
        gone = [one for number, one in before.members.items() if one.state != "new" and number not in after.members]
        same = all(
            one.state == self._state_of(before, number) for number, one in after.members.items() if one not in new
        )
        if len(new) != 1 or not gone or not same or not new[0].instance:
            return
        [member], replaced = new, {one.number for one in gone}
        if any(
            (one.instance, one.state == "leaving") != (member.instance, False)
            or (one.state == "absent" and one.absent + one.grace < after.head.epoch)
            or (not one.grace and self._is_over(one.number, before.head.epoch))
            or before.subscriptions[one.subscription] != after.subscriptions[member.subscription]
            for one in gone
        ):
            return
        owners = (target.member for queue in before.plan.values() for target in queue.targets.values())
        loads = Counter(member.number if owner in replaced else owner for owner in owners)
        shares = [loads[number] for number, one in after.members.items() if one.state == "present"]
        leaving = sum(loads[number] for number, one in after.members.items() if one.state == "leaving")
        orphaned = loads.keys() - after.members.keys()
        if leaving or orphaned or before.plan.keys() != after.plan.keys() or max(shares) - min(shares) > 1:
            return
        if not all(one in replaced and to == member.number for one, to in moved.values()):
            self.record_violation(f"O7: {member.number} has come back as {member.instance}, and {moved} moved")

    def _is_over(self, number: int, epoch: int) -> bool:
        """Returns whether a member's session is over by its own count: without a grace nobody inherits from it."""
        life = self.life_of(number, epoch)
        return life is not None and life.end <= self.now

    def _state_of(self, state: GroupState, number: int) -> str:
        return state.members[number].state if number in state.members else "new"

    def offsets_changed(self, uid: int, before: Rows, after: Rows, deed: OffsetsChange) -> None:
        self.counts[deed.kind] += 1
        for part in before.keys() | after.keys():
            place, old, new = (uid, part), before.get(part), after.get(part)
            if new is None:
                self._last.pop(place, None)
            if new is None or new == old:
                continue
            self._check_record(place, old or OwnedOffset(part), new, deed)
            if new.owner and (old is None or (old.owner, old.epoch) != (new.owner, new.epoch)):
                self._check_owner(place, new.owner, new.epoch, new.came)

    def _check_record(self, place: Place, old: OwnedOffset, new: OwnedOffset, deed: OffsetsChange) -> None:
        part, is_commit = place[1], deed.kind == "commit"
        if is_commit and (old.owner, old.epoch) != (deed.member, deed.epochs[part]):
            self.record_violation(f"O2: {deed.member} under {deed.epochs[part]} recorded for {place}, not {old.owner}")
        may_go_back = part in deed.back if is_commit else deed.kind == "plain" and not new.owner
        if is_before(new.position, old.position) and not may_go_back:
            self.record_violation(f"O3: {place} went from {old.position} to {new.position} by a {deed.kind}")

    def _check_owner(self, place: Place, owner: int, epoch: int, came: str) -> None:
        """Checks a new owner of a partition.

        Each ownership has a higher epoch. A partition is new only once, and given back only if its owner said so or
        left. The owner may read the queue.
        """
        self.counts[f"owned {came}"] += 1
        life = self.life_of(owner, epoch)
        self._check_work(place, life, f"{owner} became the owner")
        if epoch <= self._highest.get(place, 0):
            self.record_violation(f"O2: {place} has two ownerships under {epoch}")
        self._highest[place] = max(epoch, self._highest.get(place, 0))
        last = self._last.get(place)
        self._last[place] = owner, epoch
        if last is not None and came == "new":
            self.record_violation(f"O4: {place} is new to {owner} and was owned by {last}")
        if came == "given back":
            former = None if last is None else self.life_of(*last)
            if last is None or former is None or not (former.left or self._was_given_back(former, place, last[1])):
                self.record_violation(f"O4: {place} was not given back by {last}")
        if life is not None and self.lacks_rights(life.credential, place[0], RIGHTS):
            self.record_violation(f"O6: {owner} may not have {place}")

    def lacks_rights(self, credential: MemberCredential, uid: int, seconds: float) -> bool:
        """Returns whether a credential has had no right to a queue's partitions for ``seconds``.

        Returns False if the queue is gone.
        """
        queue = self.queue_of(uid)
        if queue is None or self.narrowed.get(credential.id, 0.0) > self.now - seconds:
            return False
        return not may_read_and_claim(self.rights.get(credential.id), queue)

    def queue_of(self, uid: int) -> Queue | None:
        """Returns the queue, or None if it was removed, even if one of its name was created since."""
        queue = self.stored.queues.get(self.stored.names_of[uid])
        return queue if queue is not None and queue.uid == uid else None

    def _check_work(self, place: Place, life: Life | None, deed: str) -> None:
        """Records a violation if another life may still work on a partition. Excused lives may."""
        for other in self.lives:
            if other is life or other.ended or other.excused or place not in other.holds or other.end <= self.now:
                continue
            if self.queue_of(place[0]) is not None:
                self.record_violation(
                    f"O1: {other.number} is at work on {place} until {other.end - 1000:.3f}, when {deed}"
                )

    def check_take(
        self, life: Life, place: Place, epoch: int, position: Position | None, came: str, note: bytes | None
    ) -> None:
        """Records that a member begins to work on a partition, with the position, origin and note that it was told.

        It must own the partition, may not have given it back, and what it was told must be what is stored. The rows of
        a removed queue stay as they were, so it may have given back one of its partitions.
        """
        self.counts["taken"] += 1
        if self._was_given_back(life, place, epoch) and self.queue_of(place[0]) is not None:
            self.record_violation(f"O2: {life.number} has {place} again under {epoch}, under which it gave it back")
        life.holds[place] = epoch
        row = self.stored.rows(place[0]).value.get(place[1])
        if row is None or (row.owner, row.epoch) != (life.number, epoch):
            if row is not None and row.owner and not life.excused and self.queue_of(place[0]) is not None:
                self.record_violation(f"O1: {life.number} begins to work on {place}, which {row.owner} owns")
            return
        self._check_work(place, life, f"{life.number} takes it")
        if (row.position, row.came, row.note) != (position, came, note):
            self.record_violation(f"O4: {life.number} was told {position, came, note} of {place}, not {row}")

    def check_end(self, life: Life, name: str, part: int, epoch: int, how: str) -> None:
        """Records a violation if a member still owns a partition under an epoch, whose end it was told."""
        queue = self.stored.queues.get(name)
        row = None if queue is None else self.stored.rows(queue.uid).value.get(part)
        if row is not None and (row.owner, row.epoch) == (life.number, epoch):
            self.record_violation(f"O5: {life.number} was told that {name}/{part} is {how}, and owns it under {epoch}")

    def _was_given_back(self, life: Life, place: Place, epoch: int) -> bool:
        return (self.stored.names_of[place[0]], place[1], epoch) in life.said


def may_read_and_claim(credential: MemberCredential | None, queue: Queue) -> bool:
    return (
        credential is not None
        and is_allowed(queue, credential.caller, "read")
        and is_allowed(queue, credential.caller, "claim")
    )


def is_before(one: Position | None, other: Position | None) -> bool:
    """Returns whether an offset is below another one. None is below all messages."""
    return other is not None and (one is None or one < other)
