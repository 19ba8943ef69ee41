"""Checks, before a worker joins its group, that its credential has all rights that its options need.

Without this check, the worker would block at the first failed message: its dead letter cannot be stored, so its
partition makes no progress.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from collections.abc import Set as AbstractSet
from random import uniform
from typing import TypeVar

from qdo.consumer.consumer import AsyncConsumer
from qdo.errors import MissingRights
from qdo.settings import WorkerSettings
from queuey.client import AsyncClient, ClientError, RetryPolicy
from queuey.client.deadletters import holds_dead, queue_for
from queuey.client.lookup import find_queues, rights_for

logger = logging.getLogger("qdo.worker")

MAX_CHECKED_QUEUES = 100
"""Max queues matching patterns that are checked."""
RETRY_PAUSES = RetryPolicy(deadline=0.0, base=0.25, cap=5.0)
"""Pauses while the service does not respond. The client itself does not repeat requests."""
MAX_SHOWN = 10
GROUP_OPTION = "a group of the service"
"""The option that needs the right to claim, in the text of errors."""

T = TypeVar("T")
Need = tuple[str, str, str]
"""A right: the name of a queue, an action, and the option that needs the right."""


async def require_rights(consumer: AsyncConsumer, settings: WorkerSettings) -> None:
    """Checks the rights as soon as the service responds.

    Rights for queues that only match a pattern may be missing, because these may belong to others, such as a user's
    inbox. Missing rights for them are only logged. In a group of the service, named queues that do not exist are also
    logged. For a missing queue the worker needs only ``admin`` and ``send``, for dead letters.

    Raises:
        MissingRights: The credential lacks rights for named queues.
        ClientError: The service refused to look up the rights.
    """
    client, names = consumer.client, consumer.wanted.names
    if missing := await repeat_until_answered(client, lambda once: _find_missing(once, consumer, settings, names)):
        raise MissingRights(
            f"the credential lacks {len(missing)} of the rights that this worker needs: {_format_needs(missing)}. "
            f"Give it these rights (docs/access.md), or change the options{_describe_way_out(missing)}"
        )
    if consumer.coordinator.in_service and names:  # With ZooKeeper the leader logs this.
        lookup = await repeat_until_answered(client, lambda once: find_queues(once, names))
        if lookup.absent:
            logger.warning("queues that do not exist: %s", ", ".join(sorted(lookup.absent)))
    matching = await repeat_until_answered(client, lambda once: _find_matching_names(once, consumer)) - names
    if missing := await repeat_until_answered(client, lambda once: _find_missing(once, consumer, settings, matching)):
        logger.warning(
            "the credential lacks rights for queues that match patterns: %s. Unreadable queues are left to others",
            _format_needs(missing),
        )


def _describe_way_out(missing: list[Need]) -> str:
    return ", or use --coordination zookeeper://…" if any(need[2] == GROUP_OPTION for need in missing) else ""


async def repeat_until_answered(client: AsyncClient, ask: Callable[[AsyncClient], Awaitable[T]]) -> T:
    """Repeats a request until the service responds. Raises ClientError if the service refuses it."""
    once, failures = client.with_retry(RETRY_PAUSES), 0
    while True:
        try:
            return await ask(once)
        except ClientError as error:
            if not error.temporary:
                raise
            failures += 1
            if failures == 1:
                logger.warning("the service does not answer now, retrying: %s", error)
            await asyncio.sleep(RETRY_PAUSES.pause(failures, uniform(0.5, 1.0)))  # noqa: S311 - spreads load


def _format_needs(needs: list[Need]) -> str:
    return ", ".join(map(_format_need, needs[:MAX_SHOWN]))


def _format_need(need: Need) -> str:
    name, action, option = need
    what = f"admin, because {name!r} does not exist, so create it" if action == "admin" else f"{action} for {name!r}"
    return f"{what} ({option})" if option else what


async def _find_missing(
    client: AsyncClient, consumer: AsyncConsumer, settings: WorkerSettings, names: AbstractSet[str]
) -> list[Need]:
    claims = GROUP_OPTION if consumer.coordinator.in_service else "mirror" if consumer.settings.mirror else ""
    needs = _list_needs(sorted(names), settings, claims)
    rights = await rights_for(client, {name for name, _, _ in needs})
    lacking = [need for need in needs if need[1] not in rights[need[0]]]
    lookup = await find_queues(client, {name for name, action, _ in lacking if action != "send"})
    # A missing queue needs admin, to create it. Other rights may be granted when it is created.
    return [
        (name, action, option)
        for name, action, option in lacking
        if action == "send" or (name in lookup.absent) == (action == "admin")
    ]


async def _find_matching_names(client: AsyncClient, consumer: AsyncConsumer) -> set[str]:
    subscription, names = consumer.wanted, set[str]()
    for prefix in subscription.literal_prefixes():
        page = await client.queue_page(start=prefix or None, limit=MAX_CHECKED_QUEUES)
        names |= {queue.name for queue in page.queues if subscription.matches_name(queue.name)}
    return set(sorted(names)[:MAX_CHECKED_QUEUES])


def _list_needs(names: list[str], settings: WorkerSettings, claims: str) -> list[Need]:
    needs: dict[Need, None] = {}
    for name in names:
        needs[name, "read", ""] = None
        if claims:
            needs[name, "claim", claims] = None
        if settings.on_failure == "dead-letter" and (settings.bury_dead or not holds_dead(name, settings.dead_queue)):
            target = queue_for(name, settings.dead_queue)
            needs |= dict.fromkeys((target, action, "on_failure is dead-letter") for action in ("send", "admin"))
    return list(needs)
