"""Changes made many at once, and the nodes that hold others made when they are missing."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from qdo.coordination.zookeeper import transactions
from qdo.coordination.zookeeper.driver import Link
from qdo.coordination.zookeeper.paths import parent
from qdo.coordination.zookeeper.transactions import Applied, Change, Create, Outcome, Rejection, RejectionReason
from qdo.errors import CoordinationLost, SessionLost

Key = TypeVar("Key")
DEEPEST = 64
"""Levels that missing nodes may have; if more are missing, another program must be removing them as fast as they are
made."""


async def apply_each(link: Link, wanted: Mapping[Key, Change]) -> dict[Key, Outcome]:
    """Makes changes, each whole or not at all, independently of each other; returns the outcome of each.

    Raises:
        CoordinationLost: Each was made or not.
        SessionLost: None was made.
        CoordinationRefused
    """
    each = list(wanted.values())
    bundles = [each[part] for part in transactions.bundle(each)]
    tried = await link.apply(map(transactions.join, bundles))
    outcomes: list[Outcome | None] = []
    for bundle, outcome in zip(bundles, tried, strict=True):
        outcomes += _told(bundle, outcome)
    again = [index for index, outcome in enumerate(outcomes) if outcome is None]
    try:
        later = await link.apply([each[index] for index in again])
    except SessionLost as error:
        if any(isinstance(outcome, Applied) for outcome in outcomes):
            raise CoordinationLost("the session ended after a part of the changes") from error
        raise
    for index, outcome in zip(again, later, strict=True):
        outcomes[index] = outcome
    return {key: outcome for key, outcome in zip(wanted, outcomes, strict=True) if outcome is not None}


def _told(bundle: Sequence[Change], outcome: Outcome) -> Iterator[Outcome | None]:
    """Yields what came of the changes of a bundle, None where that is not known yet."""
    if not isinstance(outcome, Rejection):
        yield from transactions.split(outcome, bundle)
    elif len(bundle) == 1:
        yield outcome
    else:
        yield from [None] * len(bundle)


async def make(link: Link, paths: Iterable[str], deepest: int = DEEPEST) -> None:
    """Makes nodes that hold others, and those that they lie in; nothing happens to those that are there.

    Upwards from below, so that no request is made further up, where the credentials may not allow it.

    Raises:
        CoordinationLost, SessionLost, CoordinationRefused
    """
    wanted = list(dict.fromkeys(path for path in paths if path != "/"))
    outcomes = await link.apply((Create(path),) for path in wanted)
    orphans = [path for path, outcome in zip(wanted, outcomes, strict=True) if lacks_parent(outcome)]
    if orphans and deepest:
        await make(link, map(parent, orphans), deepest - 1)
        await make(link, orphans, deepest - 1)


def lacks_parent(outcome: Outcome) -> bool:
    """Returns whether a node could not be made because the one that it should lie in is missing."""
    return isinstance(outcome, Rejection) and outcome.why is RejectionReason.NO_NODE


class ParentNodes:
    """Makes nodes that hold others and remembers which are there, for callers of one session that come all at once.

    Args:
        link: The session.
    """

    def __init__(self, link: Link) -> None:
        self._link = link
        self._made: set[str] = set()
        self._lock = asyncio.Lock()

    async def make(self, paths: Iterable[str]) -> None:
        """Makes those that are not known to be there.

        Raises:
            CoordinationLost, SessionLost, CoordinationRefused
        """
        async with self._lock:
            missing = set(paths) - self._made
            if missing:
                await make(self._link, sorted(missing))
                self._made |= missing

    def doubt(self, paths: Iterable[str]) -> None:
        """Forgets that nodes are there: something in them was missing."""
        self._made.difference_update(paths)
