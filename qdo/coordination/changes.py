"""Changes of nodes: creates missing parents, and retries after concurrent changes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from qdo.coordination.tree import Create, Link, Outcome, Rejection, RejectionReason, parent_path
from qdo.errors import CoordinationLost

MAX_MISSING_LEVELS = 64
"""Max levels of missing parents to create; if more are missing, another program must be deleting them meanwhile."""


async def make_nodes(link: Link, paths: Iterable[str], max_missing_levels: int = MAX_MISSING_LEVELS) -> None:
    """Creates container nodes and their missing parents. Existing nodes are left as they are.

    Tries the given paths first and goes up only as far as parents are missing: the credentials may not allow requests
    further up.
    """
    missing = list(dict.fromkeys(path for path in paths if path != "/"))
    outcomes = await link.apply((Create(path),) for path in missing)
    orphans = [path for path, outcome in zip(missing, outcomes, strict=True) if lacks_parent(outcome)]
    if orphans and max_missing_levels:
        await make_nodes(link, map(parent_path, orphans), max_missing_levels - 1)
        await make_nodes(link, orphans, max_missing_levels - 1)


def lacks_parent(outcome: Outcome) -> bool:
    return isinstance(outcome, Rejection) and outcome.why is RejectionReason.NO_NODE


def yield_attempts(what: str, max_attempts: int = 25) -> Iterator[int]:
    """Yields once for each attempt at a change that may conflict with concurrent changes.

    Raises:
        CoordinationLost: All ``max_attempts`` attempts conflicted. The caller may try again later.
    """
    yield from range(max_attempts)
    raise CoordinationLost(f"too many concurrent changes of {what}; try again later")
