"""How many messages lie in a range: counted where they are few, estimated from both ends where they are many."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from queuey.ids import Position

COUNTED = 2000
"""Up to so many messages are counted."""


class Tally(NamedTuple):
    """What is known of a range."""

    size: int
    exact: bool
    oldest: Position | None
    newest: Position | None


NOTHING = Tally(0, exact=True, oldest=None, newest=None)


def tally(first: Sequence[Position], last: Sequence[Position] = ()) -> Tally:
    """Makes a tally of one end of a range, or of both.

    Args:
        first: The lowest positions, ascending; all there are if ``last`` is empty.
        last: The highest positions, descending, if ``first`` does not hold all.
    """
    if not first:
        return NOTHING
    if not last:
        return Tally(len(first), exact=True, oldest=first[0], newest=first[-1])
    if last[-1] <= first[-1]:
        known = len(set(first) | set(last))
        return Tally(known, exact=True, oldest=first[0], newest=last[0])
    densities = [len(end) / max(1, abs(end[-1][0] - end[0][0])) for end in (first, last)]
    between = (last[-1][0] - first[-1][0]) * sum(densities) / 2
    return Tally(round(len(first) + len(last) + between), exact=False, oldest=first[0], newest=last[0])
