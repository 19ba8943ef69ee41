"""Changes of nodes: creates missing parents, and retries after concurrent changes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from qdo.coordination.tree import Create, Link, Outcome, Rejection, RejectionReason, parent
from qdo.errors import CoordinationLost

DEEPEST = 64
"""Max levels of missing parents to create; if more are missing, another program must be deleting them meanwhile."""


async def make_nodes(link: Link, paths: Iterable[str], deepest: int = DEEPEST) -> None:
    """Creates container nodes and their missing parents. Existing nodes are left as they are.

    Tries the given paths first and goes up only as far as parents are missing: the credentials may not allow requests
    further up.
    """
    missing = list(dict.fromkeys(path for path in paths if path != "/"))
    outcomes = await link.apply((Create(path),) for path in missing)
    orphans = [path for path, outcome in zip(missing, outcomes, strict=True) if lacks_parent(outcome)]
    if orphans and deepest:
        await make_nodes(link, map(parent, orphans), deepest - 1)
        await make_nodes(link, orphans, deepest - 1)


def lacks_parent(outcome: Outcome) -> bool:
    return isinstance(outcome, Rejection) and outcome.why is RejectionReason.NO_NODE


def attempts(what: str, most: int = 25) -> Iterator[int]:
    """Yields once for each attempt at a change that may conflict with concurrent changes.

    Raises:
        CoordinationLost: All ``most`` attempts conflicted. The caller may try again later.
    """
    yield from range(most)
    raise CoordinationLost(f"too many concurrent changes of {what}; try again later")
