"""Owners of partitions: who hands over what, and which commits count. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from queuey.groups.state import GroupState
from queuey.messages import OwnedOffset


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
        state: Of the group, read after the rows.
        uid: Of the queue.
        rows: All that the group has recorded for the queue, by partition.
        given_back: By partition the member that gives it back and the epoch of its ownership.
    """
    raise NotImplementedError
