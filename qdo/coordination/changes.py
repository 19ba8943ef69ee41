"""How changes are made: missing parents when needed, again when others were quicker, and many in one transaction.

Transactions cost ZooKeeper a round of agreement each and the client a packet each. So it gets changes that do not
depend on each other in bundles; when a bundle is refused because of one of them, each is sent again for itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from qdo.coordination.tree import Applied, Change, Create, Link, Outcome, Rejection, RejectionReason, parent
from qdo.errors import CoordinationLost, SessionLost

MOST_OPERATIONS = 128
MOST_BYTES = 256 * 1024
"""Max bytes of one bundle: a quarter of what a server accepts in one packet."""
OVERHEAD = 64
"""Number of bytes of an operation beside its path and its data, roughly: numbers and access lists."""
DEEPEST = 64
"""Max levels of missing nodes: if more are missing, another program must be removing them as fast as they are made."""


async def apply_bundled(link: Link, changes: Iterable[Change]) -> list[Outcome]:
    """Sends changes in bundles; see :meth:`Link.apply_each`.

    Raises:
        CoordinationLost: Each was made or not.
        SessionLost: None was made.
        CoordinationRefused
    """
    each = list(changes)
    bundles = [each[part] for part in bundle(each)]
    outcomes: list[Outcome | None] = []
    for joined, outcome in zip(bundles, await link.apply(map(join, bundles)), strict=True):
        if isinstance(outcome, Applied):
            outcomes += split(outcome, joined)
        else:
            outcomes += [outcome] if len(joined) == 1 else [None] * len(joined)
    again = [change for change, outcome in zip(each, outcomes, strict=True) if outcome is None]
    try:
        later = iter(await link.apply(again))
    except SessionLost as error:
        if any(isinstance(outcome, Applied) for outcome in outcomes):
            raise CoordinationLost("the session ended after a part of the changes") from error
        raise
    return [next(later) if outcome is None else outcome for outcome in outcomes]


async def make(link: Link, paths: Iterable[str], deepest: int = DEEPEST) -> None:
    """Makes nodes that hold others, and those that they lie in; nothing happens to those that are there.

    Upwards from below, so that no request is made further up, where the credentials may not allow it.
    """
    wanted = list(dict.fromkeys(path for path in paths if path != "/"))
    outcomes = await link.apply((Create(path),) for path in wanted)
    orphans = [path for path, outcome in zip(wanted, outcomes, strict=True) if lacks_parent(outcome)]
    if orphans and deepest:
        await make(link, map(parent, orphans), deepest - 1)
        await make(link, orphans, deepest - 1)


def lacks_parent(outcome: Outcome) -> bool:
    return isinstance(outcome, Rejection) and outcome.why is RejectionReason.NO_NODE


def bundle(changes: Sequence[Change], most: int = MOST_OPERATIONS) -> Iterator[slice]:
    """Yields which changes go together, in order."""
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
    """Returns about how many bytes a change takes."""
    return sum(OVERHEAD + len(each.path) + len(each.data) for each in change)


def join(changes: Sequence[Change]) -> Change:
    return tuple(operation for change in changes for operation in change)


def split(done: Applied, changes: Sequence[Change]) -> Iterator[Applied]:
    """Yields the outcome of each of the changes that were joined."""
    at = 0
    for change in changes:
        yield Applied(done.versions[at : at + len(change)])
        at += len(change)


def attempts(what: str, most: int = 25) -> Iterator[int]:
    """Yields once for each attempt to change what others may be changing.

    Raises:
        CoordinationLost: There were too many; it may be tried again later.
    """
    yield from range(most)
    raise CoordinationLost(f"{what} was changed by others again and again")
