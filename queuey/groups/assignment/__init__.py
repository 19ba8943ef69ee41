"""Assigns partitions to members. Pure: a function of the members, their queues, and the previous assignment.

An assignment is

* balanced: no partition, nor a chain of them (one moves from the first member to the second, another from the second
  to the third), can move so that a difference of two or more between two members' numbers shrinks. When all subscribe
  to the same queues, these numbers differ by one at most;
* sticky: of all assignments that are as even, it is one that moves the fewest partitions;
* the same wherever it is computed, whatever order members and partitions come in.

Members and queues are whatever can be hashed and sorted. A partition is a pair: its queue, and its number from 1 on.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping

from queuey.groups.assignment.balancing import balance
from queuey.groups.assignment.fewest_moves import undo_needless_moves
from queuey.groups.assignment.partition_pools import M, Q, choose_partitions, gather

__all__ = ["assign"]


def assign(
    members: Mapping[M, Mapping[Q, int]],
    previous: Iterable[tuple[tuple[Q, int], M]],
    *,
    reserved: Container[M] = (),
) -> dict[tuple[Q, int], M]:
    """Returns the owner that each partition is to have.

    Args:
        members: For each member its queues, with the number of partitions that it sees.
        previous: The previous assignment, as pairs; its members and partitions need not exist any more.
        reserved: Absent owners that keep their partitions, which are left out of the result and of the balance.
    """
    names = sorted(members)
    shares = gather(names, members, previous, reserved)
    balance(shares)
    if len(shares.pools) > 1:
        undo_needless_moves(shares)
    return dict(pair for pool in shares.pools for pair in choose_partitions(pool, names))
