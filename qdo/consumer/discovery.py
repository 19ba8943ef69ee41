"""Which queues a consumer subscribes to, and how many partitions each has now."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from qdo.subscriptions import Subscription
from queuey.client import AsyncClient, NotAllowed, QueueNotFound
from queuey.client import Queue as Described

ONE_BY_ONE = 5
"""Queues that are looked up each by a call of its own rather than by going through a listing."""
LISTED = 1000
"""Queues in one page of the listing."""


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


async def ask(client: AsyncClient, subscription: Subscription) -> None:
    """Asks whether the service tells which queues there are; costs it one small read.

    Raises:
        ClientError: It does not.
    """
    try:
        await client.queue_page(limit=1)
    except NotAllowed:
        if subscription.patterns:
            raise
        await _informed(client, sorted(subscription.names)[:1])


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
