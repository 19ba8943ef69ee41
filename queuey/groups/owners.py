"""Owners of partitions: who hands over what. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from msgspec.structs import replace

from queuey.groups.ownership import OwnedOffset
from queuey.groups.state import GroupState


class HandOver(NamedTuple):
    """What a hand-over of one queue writes.

    Attributes:
        owners: The rows that change, with their new owner, epoch and origin.
        needs_plan: A partition that has moved in this epoch is free again: a new plan is due.
    """

    owners: tuple[OwnedOffset, ...]
    needs_plan: bool


def hand_over(
    state: GroupState, uid: int, rows: Mapping[int, OwnedOffset], given_back: Mapping[int, tuple[int, int]]
) -> HandOver:
    """Decides about the partitions of a queue; see *Hand over* in ``docs/architecture-groups.md``.

    Args:
        state: The group, read after the rows.
        uid: Names the queue.
        rows: All that the group has recorded for the queue, by partition.
        given_back: By partition the member that gives it back and the epoch of its ownership.
    """
    planned = state.plan.get(uid)
    targets = {} if planned is None else planned.targets
    epoch = state.head.epoch
    changes, needs_plan = [], False
    for partition in sorted(rows.keys() | targets.keys()):
        before = row = rows.get(partition, OwnedOffset(partition))
        if row.owner and given_back.get(partition) == (row.owner, row.epoch):
            row = replace(row, owner=0, came="given back")
        elif row.owner and not is_owner(state, row):
            row = replace(row, owner=0, came="lost")
        target = targets.get(partition)
        taker = None if target is None else state.members.get(target.member)
        if not row.owner and taker is not None and taker.state == "present":
            if epoch > row.epoch:
                row = replace(row, owner=taker.number, epoch=epoch)
            else:
                needs_plan = True
        if row != before:
            changes.append(row)
    return HandOver(tuple(changes), needs_plan)


def is_owner(state: GroupState, row: OwnedOffset) -> bool:
    """Returns whether a partition's owner is a member that may be at work on it.

    One under an epoch that the state does not know yet counts as one: the state is older than the row.
    """
    if row.epoch < state.head.born:
        return False
    if row.epoch > state.head.epoch:
        return True
    owner = state.members.get(row.owner)
    return owner is not None and owner.state in {"present", "leaving"}
