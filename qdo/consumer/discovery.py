"""Which queues a consumer subscribes to, and how many partitions each has now."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from fnmatch import fnmatchcase

from qdo.deadletters import SUFFIX
from qdo.errors import InvalidArgument
from queuey.client import AsyncClient, NotAllowed, QueueNotFound
from queuey.client import Queue as Described

ONE_BY_ONE = 5
"""Queues that are looked up each by a call of its own rather than by going through a listing."""
LISTED = 1000
"""Queues in one page of the listing."""
_SPECIAL = "*?["


class Subscription:
    """The names and patterns of queues that are wanted.

    Args:
        names: Queues; they need not exist yet.
        patterns: In the manner of shells, told apart by case: ``*``, ``?``, ``[a-z]``.

    Raises:
        InvalidArgument: There is neither, or no queue can have such a name.
    """

    def __init__(self, names: Iterable[str], patterns: Iterable[str]) -> None:
        if isinstance(names, str) or isinstance(patterns, str):
            raise InvalidArgument("queues and patterns are lists of texts")
        self.names = frozenset(names)
        self.patterns = tuple(dict.fromkeys(patterns))
        if not self.names and not self.patterns:
            raise InvalidArgument("a consumer needs the names of queues, or patterns")
        for name in self.names:
            if name in {"", ".", ".."} or name.startswith("_") or "/" in name:
                raise InvalidArgument(f"no queue can be named {name!r}")
        if "" in self.patterns:
            raise InvalidArgument("an empty pattern matches no queue")

    def wants(self, name: str) -> bool:
        """Tells whether a queue of this name is one of them.

        A pattern takes queues for dead letters only if it ends as they do: a worker would handle its failures for ever.
        """
        dead = name.endswith(SUFFIX)
        return name in self.names or any(
            fnmatchcase(name, pattern) for pattern in self.patterns if pattern.endswith(SUFFIX) or not dead
        )

    def stretches(self) -> list[str]:
        """Returns what the names of all matching queues begin with; none of these texts begins with another."""
        beginnings = sorted({_beginning(pattern) for pattern in self.patterns})
        kept: list[str] = []
        for text in beginnings:
            if not kept or not text.startswith(kept[-1]):
                kept.append(text)
        return kept


def _beginning(pattern: str) -> str:
    """Returns the text before a pattern's first special character."""
    return pattern[: min((pattern.find(mark) for mark in _SPECIAL if mark in pattern), default=len(pattern))]


async def discover(client: AsyncClient, subscription: Subscription, *, listed: int = LISTED) -> dict[str, int]:
    """Returns the number of partitions of each wanted queue that exists now.

    Args:
        client: To ask the service with.
        subscription: Which queues are wanted.
        listed: Queues in one page of the listing, at most.

    Raises:
        ClientError: The service cannot say.
    """
    try:
        return await _listed(client, subscription, listed)
    except NotAllowed:
        # Whoever may read queues of somebody else may not list them.
        if subscription.patterns:
            raise
    return await _informed(client, subscription.names)


async def _informed(client: AsyncClient, names: Iterable[str]) -> dict[str, int]:
    """Asks for each queue by itself, which costs the service more than a listing."""
    found: dict[str, int] = {}
    for name in sorted(names):
        with suppress(QueueNotFound):
            found[name] = (await client.info(name)).partitions
    return found


async def _listed(client: AsyncClient, subscription: Subscription, limit: int) -> dict[str, int]:
    found: dict[str, int] = {}
    stretches = subscription.stretches()
    names = sorted(name for name in subscription.names if not name.startswith(tuple(stretches)))
    if len(names) > ONE_BY_ONE:
        await _walk(client, subscription, names[0], names[-1], found, limit)
    else:
        for name in names:
            await _walk(client, subscription, name, name, found, 1)
    for text in stretches:
        await _walk(client, subscription, text, text + "\U0010ffff", found, limit)
    return found


async def _walk(
    client: AsyncClient,
    subscription: Subscription,
    first: str,
    last: str,
    found: dict[str, int],
    limit: int,
) -> None:
    """Goes through the listing, which is sorted by code points, from one name to another."""
    start: str | None = first
    while start is not None and start <= last:
        page = await client.queue_page(start=start or None, limit=limit)
        found |= {queue.name: queue.partitions for queue in page.queues if _fits(queue, last, subscription)}
        start = page.next


def _fits(queue: Described, last: str, subscription: Subscription) -> bool:
    return queue.name <= last and subscription.wants(queue.name)
