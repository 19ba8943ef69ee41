"""The plan of a group: which member is to own each partition. The hand-over of partitions to these members."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from queuey.groups.assignment import assign
from queuey.groups.rules.group_state import (
    MAX_CHUNK_BYTES,
    MAX_PARTITIONS,
    MAX_PLAN_BYTES,
    GroupState,
    GroupSubscription,
    PlannedOwner,
    PlannedQueue,
    choose_chunk,
    max_queue_bytes,
)
from queuey.model.groups import OwnedOffset, OwnedOffsets
from queuey.model.messages import Queue
from queuey.model.rights import is_allowed


class GroupPlan(NamedTuple):
    """A plan.

    Attributes:
        queues: Queues with their targets, by uid.
        unassigned: Number of partitions without a target in queues that members subscribe to.
    """

    queues: dict[int, PlannedQueue]
    unassigned: int


class SubscribedQueues:
    """A subscription's queues: the uids of all that match, and partition counts by uid, of readable queues.

    Args:
        subscription: The subscription.
        rights: Whether its credential may read a queue, by uid, as far as that is known.
    """

    def __init__(self, subscription: GroupSubscription, rights: dict[int, bool]) -> None:
        self._matches, self._caller, self._rights = subscription.matcher(), subscription.credential.caller, rights
        self.requested: set[int] = set()
        self.readable: dict[int, int] = {}

    def add(self, queue: Queue) -> None:
        if self._matches(queue.name):
            uid, caller = queue.uid, self._caller
            self.requested.add(uid)
            if uid not in self._rights:
                self._rights[uid] = is_allowed(queue, caller, "read") and is_allowed(queue, caller, "claim")
            if self._rights[uid]:
                self.readable[uid] = queue.partitions


Views = Mapping[int, SubscribedQueues]
"""Views by the slots of their subscriptions."""


def make_plan(state: GroupState, queues: Sequence[Queue], views: Views) -> GroupPlan:
    """Makes a balanced plan that moves few partitions.

    Absent members keep those of their partitions that they may still read, and get no others. If no member is present
    or absent, all queues stay in the plan without targets, so that the group's offsets remain visible.

    Args:
        state: The group, with the previous plan and the epoch of the new one.
        queues: All queues that match a subscription.
        views: The queues of each subscription that a member has; changed here.
    """
    present = {member.number: member.subscription for member in state.members.values() if member.state == "present"}
    absent = {member.number: member.subscription for member in state.members.values() if member.state == "absent"}
    slots = present | absent
    if not slots:
        return GroupPlan({uid: PlannedQueue(uid, queue.name, {}) for uid, queue in state.plan.items()}, 0)
    views = {slot: views[slot] for slot in set(slots.values())}
    before = {
        (uid, partition): target.member
        for uid, queue in state.plan.items()
        for partition, target in queue.targets.items()
        if target.member in slots and uid in views[slots[target.member]].readable
    }
    shared = {uid for slot in set(present.values()) for uid in views[slot].readable}
    shared |= {uid for (uid, _), member in before.items() if member in absent}
    unlimited = {
        uid for slot, view in views.items() if state.subscriptions[slot].scope == ("*",) for uid in view.readable
    }
    ordered = sorted(queues, key=lambda queue: (queue.uid not in unlimited, queue.name))
    chosen = _choose_within_bounds([queue for queue in ordered if queue.uid in shared])
    for view in views.values():
        view.readable = {uid: number for uid, number in view.readable.items() if uid in chosen}
    owners = assign({member: views[slot].readable for member, slot in present.items()}, before.items(), reserved=absent)
    owners |= {partition: member for partition, member in before.items() if member in absent and partition[0] in chosen}
    targets: dict[int, dict[int, PlannedOwner]] = {}
    for (uid, partition), member in owners.items():
        former = state.plan[uid].targets.get(partition) if uid in state.plan else None
        target = former if former is not None and former.member == member else PlannedOwner(member, state.head.epoch)
        targets.setdefault(uid, {})[partition] = target
    requested = {uid for view in views.values() for uid in view.requested}
    unassigned = sum(queue.partitions for queue in queues if queue.uid in requested) - len(owners)
    return GroupPlan({uid: PlannedQueue(uid, chosen[uid], part) for uid, part in targets.items()}, unassigned)


def _choose_within_bounds(queues: Iterable[Queue]) -> dict[int, str]:
    """Returns the names, by uid, of the queues that a plan has room for.

    Skips a queue whose chunk is full, and stops at the first one that would make the whole plan too large. Queues that
    members without limits to some queues may read come first: a limited key does not take the room of the others.
    """
    partitions, size = 0, 0
    chunks = Counter[int]()
    chosen = {}
    for queue in queues:
        own, chunk = max_queue_bytes(queue.name, queue.partitions), choose_chunk(queue.uid)
        partitions, size = partitions + queue.partitions, size + own
        if partitions > MAX_PARTITIONS or size > MAX_PLAN_BYTES:
            break
        if chunks[chunk] + own <= MAX_CHUNK_BYTES:
            chunks[chunk] += own
            chosen[queue.uid] = queue.name
    return chosen


class HandOver(NamedTuple):
    """Changes that a hand-over of one queue writes.

    Attributes:
        owners: The rows that change, with their new owner, epoch and origin.
        needs_plan: True if a new plan is needed, because a partition that moved in this epoch is free again.
    """

    owners: tuple[OwnedOffset, ...]
    needs_plan: bool


def hand_over(
    state: GroupState, uid: int, recorded: OwnedOffsets, given_back: Mapping[int, tuple[int, int]]
) -> HandOver:
    """Decides the owners of a queue's partitions: free, given back and lost ones go to their targets if present.

    A partition gets at most one owner in an epoch, also if its offset is deleted meanwhile. See *Hand over* in
    ``docs/architecture-groups.md``.

    Args:
        state: State of the group, read after the rows.
        uid: Uid of the queue.
        recorded: Offset rows of the group for the queue.
        given_back: For each partition that is given back, the member that does so and the epoch of its ownership.
    """
    planned = state.plan.get(uid)
    targets = {} if planned is None else planned.targets
    epoch = state.head.epoch
    changes, needs_plan = [], False
    for partition in sorted(recorded.rows.keys() | targets.keys()):
        before = row = recorded.rows.get(partition, OwnedOffset(partition))
        if row.owner and given_back.get(partition) == (row.owner, row.epoch):
            row = replace(row, owner=0, came="given back")
        elif row.owner and not is_owner(state, row):
            row = replace(row, owner=0, came="lost")
        target = targets.get(partition)
        taker = None if target is None else state.members.get(target.member)
        if not row.owner and taker is not None and taker.state == "present":
            if epoch > max(row.epoch, recorded.deleted_epoch):
                row = replace(row, owner=taker.number, epoch=epoch)
            else:
                needs_plan = True
        if row != before:
            changes.append(row)
    return HandOver(tuple(changes), needs_plan)


def is_owner(state: GroupState, row: OwnedOffset) -> bool:
    """Returns whether a partition's owner is a member that may still be working on it.

    An owner of a later epoch than the state's counts too: the state is older than the row. An owner of an epoch before
    the group's first one does not: it was a member of a removed group of the same name.
    """
    if row.epoch < state.head.born:
        return False
    if row.epoch > state.head.epoch:
        return True
    owner = state.members.get(row.owner)
    return owner is not None and owner.state in {"present", "leaving"}
