"""Assigns partitions to members: a pure function of the members, their queues, and the previous assignment.

An assignment is

* balanced: if two members' partition counts differ by two or more, no move of a partition reduces the difference, and
  no chain of moves does (one partition moves from the first member to the second, another from the second to the
  third). If all members subscribe to the same queues, the counts differ by at most one;
* sticky: no other assignment that is as balanced moves fewer partitions;
* deterministic: it does not depend on the process or on the order of members and partitions.

Members and queues may be any values that can be hashed and sorted. A partition is a pair: its queue, and its number
from 1 on.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping

from queuey.groups.assignment.balancing import balance
from queuey.groups.assignment.fewest_moves import undo_needless_moves
from queuey.groups.assignment.partition_pools import M, Q, choose_partitions, make_pools

__all__ = ["assign"]


def assign(
    members: Mapping[M, Mapping[Q, int]],
    previous: Iterable[tuple[tuple[Q, int], M]],
    *,
    reserved: Container[M] = (),
) -> dict[tuple[Q, int], M]:
    """Returns the owner that each partition is to have.

    Args:
        members: The queues of each member, with the number of partitions that the member sees.
        previous: The previous assignment, as pairs. Its members and partitions may no longer exist.
        reserved: Absent owners that keep their partitions. These partitions are neither returned nor balanced.
    """
    names = sorted(members)
    shares = make_pools(names, members, previous, reserved)
    balance(shares)
    if len(shares.pools) > 1:
        undo_needless_moves(shares)
    return dict(pair for pool in shares.pools for pair in choose_partitions(pool, names))
