"""How changes are made: missing parents when needed, and again when others were quicker."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from qdo.coordination.tree import Create, Link, Outcome, Rejection, RejectionReason, parent
from qdo.errors import CoordinationLost

DEEPEST = 64
"""Max levels of missing nodes: if more are missing, another program must be removing them as fast as they are made."""


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


def attempts(what: str, most: int = 25) -> Iterator[int]:
    """Yields once for each attempt to change what others may be changing.

    Raises:
        CoordinationLost: There were too many; it may be tried again later.
    """
    yield from range(most)
    raise CoordinationLost(f"{what} was changed by others again and again")
