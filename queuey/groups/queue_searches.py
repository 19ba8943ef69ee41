"""Searches for the queues to which a group's members subscribe."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from operator import attrgetter

from queuey.groups.rules.group_state import MAX_PARTITIONS, GroupState
from queuey.model.deadletters import matches_patterns
from queuey.model.errors import QueueNotFound
from queuey.model.messages import Queue
from queuey.model.rights import matches
from queuey.queues.queues import shortest_prefixes
from queuey.runtime.event_loop import MAX_ITEMS_IN_LOOP, Core
from queuey.storage import Store

PAGE_SIZE = 1000
MAX_LISTED = 100_000
"""Max queues that a search reads for one pattern."""
_WILDCARD_PATTERN = re.compile(r"[*?\[]")


async def find_queues(
    core: Core, store: Store, application: str, state: GroupState, *, fresh: bool = True
) -> list[Queue]:
    """Returns the queues to which members subscribe, or without members the queues of the last plan, by name.

    If the listing lacks a planned queue, the queue counts as deleted only if a read of its own row confirms that. A
    listing ends once there are more than ``MAX_PARTITIONS`` queues.

    Args:
        core: Runs what takes long in slices.
        store: Store of the queues.
        application: Owner of the queues.
        state: State of the group.
        fresh: Read the rows of queues subscribed to by name from the store, not from the cache.
    """
    used = {member.subscription for member in state.members.values()}
    subscriptions = [subscription for slot, subscription in state.subscriptions.items() if slot in used]
    subscribed = {(subscription.patterns, subscription.scope) for subscription in subscriptions}
    queues: dict[str, Queue] = {}
    fixed_parts = [
        max(start, begin, key=len)
        for patterns, scope in subscribed
        for start in (_WILDCARD_PATTERN.split(pattern, maxsplit=1)[0] for pattern in patterns)
        for begin in (pattern.partition("*")[0] for pattern in scope)
        if start.startswith(begin) or begin.startswith(start)
    ]
    names = {name for subscription in subscriptions for name in subscription.names}

    def is_matched(name: str) -> bool:
        return (
            not subscriptions
            or name in names
            or any(
                matches_patterns(name, patterns) and any(matches(pattern, name) for pattern in scope)
                for patterns, scope in subscribed
            )
        )

    def add_listed(queue: Queue) -> None:
        if is_matched(queue.name):
            queues[queue.name] = queue

    for prefix in shortest_prefixes(fixed_parts):
        async for page in _list_by_prefix(store, application, prefix):
            await core.for_each(page, add_listed)
            if len(queues) > MAX_PARTITIONS:
                break
    planned = [queue.name for queue in state.plan.values()]
    await core.for_each(planned, lambda name: names.add(name) if is_matched(name) else None)
    for number, name in enumerate(await core.compute(len(names), lambda: sorted(names - queues.keys())), 1):
        with suppress(QueueNotFound):
            queues[name] = await store.catalogue.queue(application, name, fresh=fresh)
        if number % MAX_ITEMS_IN_LOOP == 0:
            await asyncio.sleep(0)  # Rows in the cache are read without a pause.
    return sorted(queues.values(), key=attrgetter("name"))


def list_planned(state: GroupState, patterns: Sequence[str]) -> list[str]:
    names = (planned.name for planned in state.plan.values())
    return sorted(name for name in names if any(matches(pattern, name) for pattern in patterns))


async def read_queues(store: Store, application: str, names: Sequence[str]) -> list[Queue]:
    queues = []
    for name in names:
        with suppress(QueueNotFound):
            queues.append(await store.catalogue.queue(application, name))
    return queues


async def _list_by_prefix(store: Store, application: str, prefix: str) -> AsyncIterator[list[Queue]]:
    start = prefix
    for _ in range(MAX_LISTED // PAGE_SIZE):
        page = await store.catalogue.list_queues(application, start=start, limit=PAGE_SIZE)
        yield [queue for queue in page if queue.name.startswith(prefix)]
        if len(page) < PAGE_SIZE or not page[-1].name.startswith(prefix):
            return
        start = page[-1].name + "\0"
