"""Checks before a worker joins its group that its credential may do all that its options need.

A worker that finds this out later stops at the first message that fails: its dead letter cannot be stored, so its
partition stands still.
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
from queuey.client import ClientError, NotFound, RetryPolicy
from queuey.client.deadletters import holds_dead, queue_for
from queuey.client.lookup import look_up, rights_for

logger = logging.getLogger("qdo.worker")

MAX_NAMES = 100
"""Max queues matching patterns that are checked."""
PAUSES = RetryPolicy(base=0.25, cap=5.0)
"""Pauses while the service does not answer."""
MAX_SHOWN = 10
"""Max missing rights that an error names."""
GROUP = "a group of the service"
"""What members of such a group need the right to claim for."""

T = TypeVar("T")
Need = tuple[str, str, str]
"""The name of a queue, an action there, and the option that needs it."""


async def require_rights(consumer: AsyncConsumer, settings: WorkerSettings) -> None:
    """Checks the rights, as soon as the service answers.

    A queue that only a pattern matches may be meant for others, such as a user's inbox: the worker begins without it.

    Raises:
        MissingRights: Some are missing for queues that are named.
        ClientError: The service refuses to answer.
    """
    names = consumer.wanted.names
    if missing := await until_answered(lambda: _missing(consumer, settings, names)):
        raise MissingRights(
            f"the credential lacks {len(missing)} of the rights that this worker needs: {_texts(missing)}. "
            f"Give it these rights (docs/access.md), or change the options{_way_out(missing)}"
        )
    if consumer.in_service_group and names:  # With ZooKeeper the leader says it.
        named = await until_answered(lambda: look_up(consumer.client, names))
        if named.absent:
            logger.warning("queues that do not exist: %s", ", ".join(sorted(named.absent)))
    matching = await until_answered(lambda: _matching(consumer))
    if missing := await until_answered(lambda: _missing(consumer, settings, matching - names)):
        logger.warning(
            "the credential lacks rights for queues that match patterns: %s. What it may not read is left to others",
            _texts(missing),
        )


def _way_out(missing: list[Need]) -> str:
    return ", or use --coordination zookeeper://…" if any(need[2] == GROUP for need in missing) else ""


async def until_answered(ask: Callable[[], Awaitable[T]]) -> T:
    """Asks the service until it answers; raises ClientError if it refuses."""
    failures = 0
    while True:
        try:
            return await ask()
        except ClientError as error:
            if not error.temporary:
                raise
            failures += 1
            if failures == 1:
                logger.warning("the service does not answer now, trying on: %s", error)
            await asyncio.sleep(PAUSES.pause(failures, uniform(0.5, 1.0)))  # noqa: S311 - spreads load


def _texts(needs: list[Need]) -> str:
    return ", ".join(map(_text, needs[:MAX_SHOWN]))


def _text(need: Need) -> str:
    name, action, option = need
    what = f"admin, because {name!r} does not exist, so create it" if action == "admin" else f"{action} for {name!r}"
    return f"{what} ({option})" if option else what


async def _missing(consumer: AsyncConsumer, settings: WorkerSettings, names: AbstractSet[str]) -> list[Need]:
    client = consumer.client
    claims = GROUP if consumer.in_service_group else "mirror" if consumer.settings.mirror else ""
    needs = _needs(sorted(names), settings, claims)
    try:
        rights = await rights_for(client, {name for name, _, _ in needs})
    except NotFound:
        logger.warning("the service is older than this program, so the worker's rights are not checked")
        return []
    lacking = [need for need in needs if need[1] not in rights[need[0]]]
    looked = await look_up(client, {name for name, action, _ in lacking if action != "send"})
    # A queue that does not exist yet may come with principals that allow the rest. Only then admin is needed.
    return [
        (name, action, option)
        for name, action, option in lacking
        if action == "send" or (name in looked.absent) == (action == "admin")
    ]


async def _matching(consumer: AsyncConsumer) -> set[str]:
    """Returns up to ``MAX_NAMES`` queues that match patterns now."""
    wanted, found = consumer.wanted, set[str]()
    for prefix in wanted.literal_prefixes():
        page = await consumer.client.queue_page(start=prefix or None, limit=MAX_NAMES)
        found |= {queue.name for queue in page.queues if wanted.wants(queue.name)}
    return set(sorted(found)[:MAX_NAMES])


def _needs(names: list[str], settings: WorkerSettings, claims: str) -> list[Need]:
    """Returns what a worker needs; ``claims`` says what needs the right to claim, if anything does."""
    needs: dict[Need, None] = {}
    for name in names:
        needs[name, "read", ""] = None
        if claims:
            needs[name, "claim", claims] = None
        if settings.on_failure == "dead-letter" and (settings.bury_dead or not holds_dead(name, settings.dead_queue)):
            target = queue_for(name, settings.dead_queue)
            needs |= dict.fromkeys((target, action, "on_failure is dead-letter") for action in ("send", "admin"))
    return list(needs)
