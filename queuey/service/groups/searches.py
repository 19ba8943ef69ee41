"""Searches for the queues that the members of a group ask for."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import suppress

from queuey.errors import QueueNotFound
from queuey.groups.state import MAX_PARTITIONS, GroupState
from queuey.messages import Queue
from queuey.service.queues import prefixes
from queuey.storage import Store

PAGE = 1000
MAX_LISTED = 100_000
"""Max queues that a search reads for one pattern."""
_SPECIAL = re.compile(r"[*?\[]")


async def find_queues(store: Store, application: str, state: GroupState, *, fresh: bool = True) -> list[Queue]:
    """Returns the queues that members ask for, or without members the queues of the last plan, by name.

    One that a list lacks although it is planned counts as deleted only if a read of its own row says so.

    Args:
        store: Has the queues.
        application: Their owner.
        state: The state of the group.
        fresh: Rows of queues that are named are read, not taken from the cache.
    """
    used = {member.subscription for member in state.members.values()}
    wishes = [each for slot, each in state.subscriptions.items() if slot in used]
    matchers = [each.matcher() for each in wishes]
    queues: dict[str, Queue] = {}
    texts = [_SPECIAL.split(pattern, maxsplit=1)[0] for each in wishes for pattern in each.patterns]
    for prefix in prefixes(texts):
        async for queue in _listed(store, application, prefix):
            if any(is_wanted(queue.name) for is_wanted in matchers):
                queues[queue.name] = queue
            if len(queues) > MAX_PARTITIONS:
                break
    planned = [
        each.name for each in state.plan.values() if not wishes or any(is_wanted(each.name) for is_wanted in matchers)
    ]
    for name in sorted({*planned, *(name for each in wishes for name in each.names)} - queues.keys()):
        with suppress(QueueNotFound):
            queues[name] = await store.catalogue.queue(application, name, fresh=fresh)
    return [queues[name] for name in sorted(queues)]


async def planned_queues(store: Store, application: str, state: GroupState, limit: int) -> list[Queue]:
    """Returns up to ``limit`` queues of the last plan by name, without a search."""
    queues = []
    for name in sorted(each.name for each in state.plan.values())[:limit]:
        with suppress(QueueNotFound):
            queues.append(await store.catalogue.queue(application, name))
    return queues


async def _listed(store: Store, application: str, prefix: str) -> AsyncIterator[Queue]:
    start = prefix
    for _ in range(MAX_LISTED // PAGE):
        page = await store.catalogue.list_queues(application, start=start, limit=PAGE)
        for queue in page:
            if not queue.name.startswith(prefix):
                return
            yield queue
        if len(page) < PAGE:
            return
        start = page[-1].name + "\0"
