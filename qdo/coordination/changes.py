"""How changes are made: many in one transaction, missing parents when needed, and again when others were quicker.

Transactions cost ZooKeeper a round of agreement each and the client a packet each, so changes that have nothing to do
with each other are sent bundled; when a bundle is refused because of one of them, they are sent again each for itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence

from qdo.coordination.tree import Applied, Change, Create, Key, Link, Outcome, Rejection, RejectionReason, parent
from qdo.errors import CoordinationLost, SessionLost

MOST_OPERATIONS = 128
MOST_BYTES = 256 * 1024
"""Of one bundle: a quarter of what a server takes in one packet."""
OVERHEAD = 64
"""Bytes of an operation beside its path and its data, roughly: numbers and access lists."""
DEEPEST = 64
"""Levels that missing nodes may have; if more are missing, another program must be removing them as fast as they are
made."""


async def apply_bundled(link: Link, wanted: Mapping[Key, Change]) -> dict[Key, Outcome]:
    """Sends changes that do not depend on each other bundled, then again each for itself what a bundle was refused for.

    Raises:
        CoordinationLost: Each was made or not.
        SessionLost: None was made.
        CoordinationRefused
    """
    each = list(wanted.values())
    bundles = [each[part] for part in bundle(each)]
    tried = await link.apply(map(join, bundles))
    outcomes: list[Outcome | None] = []
    for joined, outcome in zip(bundles, tried, strict=True):
        outcomes += _each_of(joined, outcome)
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


def _each_of(joined: Sequence[Change], outcome: Outcome) -> Iterator[Outcome | None]:
    """Yields the outcome of each change of a bundle, None where it is not known yet."""
    if not isinstance(outcome, Rejection):
        yield from split(outcome, joined)
    elif len(joined) == 1:
        yield outcome
    else:
        yield from [None] * len(joined)


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


def bundle(changes: Sequence[Change], most: int = MOST_OPERATIONS) -> Iterator[slice]:
    """Yields which changes go together, in order, up to so many operations."""
    first, operations, weight = 0, 0, 0
    for index, change in enumerate(changes):
        more = size(change)
        if index > first and (operations + len(change) > most or weight + more > MOST_BYTES):
            yield slice(first, index)
            first, operations, weight = index, 0, 0
        operations += len(change)
        weight += more
    if first < len(changes):
        yield slice(first, len(changes))


def size(change: Change) -> int:
    """Returns how many bytes a change takes, roughly."""
    return sum(OVERHEAD + len(each.path) + len(each.data) for each in change)


def join(changes: Sequence[Change]) -> Change:
    """Returns one change that does all of several."""
    return tuple(operation for change in changes for operation in change)


def split(done: Applied, changes: Sequence[Change]) -> Iterator[Applied]:
    """Yields for each of the changes that were joined what came of it."""
    at = 0
    for change in changes:
        yield Applied(done.versions[at : at + len(change)])
        at += len(change)


class Rounds:
    """Counts how often something was tried again because others were quicker.

    Args:
        what: For the error.
        most: After how many times it is given up.
    """

    def __init__(self, what: str, most: int = 25) -> None:
        self._what = what
        self._left = most

    def __bool__(self) -> bool:
        """Reports that there is another round.

        Raises:
            CoordinationLost: There were too many; it may be tried again later.
        """
        if not self._left:
            raise CoordinationLost(f"{self._what} was changed by others again and again")
        self._left -= 1
        return True
