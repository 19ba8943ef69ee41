"""Decides which member owns each partition of a queue, and hands partitions over. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from msgspec.structs import replace

from queuey.groups.rules.group_state import GroupState
from queuey.model.groups import OwnedOffset, OwnedOffsets


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
