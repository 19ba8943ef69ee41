"""Checks before a worker joins its group that its credential may do all that its options need.

A worker that finds this out later stops at the first message that fails: its dead letter cannot be stored, so its
partition stands still.
"""

from __future__ import annotations

import logging

from qdo.consumer.consumer import AsyncConsumer
from qdo.errors import MissingRights
from qdo.worker.settings import WorkerSettings
from queuey.client import NotFound
from queuey.client.deadletters import holds_dead, queue_for
from queuey.client.lookup import look_up

logger = logging.getLogger("qdo.worker")

MAX_NAMES = 100
"""Queues that match patterns that are checked; and names in one request."""
MAX_SHOWN = 10
"""Missing rights that an error names."""

Need = tuple[str, str, str]
"""The name of a queue, an action there, and which option needs it."""


async def require_rights(consumer: AsyncConsumer, settings: WorkerSettings) -> None:
    """Checks the rights.

    Raises:
        MissingRights: Some are missing.
        ClientError: The service does not say.
    """
    if missing := await _missing(consumer, settings):
        shown = ", ".join(map(_text, missing[:MAX_SHOWN]))
        raise MissingRights(
            f"the credential lacks {len(missing)} of the rights that this worker needs: {shown}. "
            "Give it these rights (docs/access.md), or change the options"
        )


def _text(need: Need) -> str:
    name, action, option = need
    what = f"admin, because {name!r} does not exist, so create it" if action == "admin" else f"{action} for {name!r}"
    return f"{what} ({option})" if option else what


async def _missing(consumer: AsyncConsumer, settings: WorkerSettings) -> list[Need]:
    client = consumer.client
    needs = _needs(await _names(consumer), settings, mirror=consumer.settings.mirror)
    asked = sorted({name for name, _, _ in needs})
    rights: dict[str, frozenset[str]] = {}
    try:
        for at in range(0, len(asked), MAX_NAMES):
            rights |= await client.rights(asked[at : at + MAX_NAMES])
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


async def _names(consumer: AsyncConsumer) -> list[str]:
    """Returns the queues that are named, and some of those that match patterns now."""
    wanted, found = consumer.wanted, set[str]()
    for prefix in wanted.stretches():
        page = await consumer.client.queue_page(start=prefix or None, limit=MAX_NAMES)
        found |= {queue.name for queue in page.queues if wanted.wants(queue.name)}
    return sorted(wanted.names.union(sorted(found)[:MAX_NAMES]))


def _needs(names: list[str], settings: WorkerSettings, *, mirror: bool) -> list[Need]:
    needs: dict[Need, None] = {}
    for name in names:
        needs[name, "read", ""] = None
        if mirror:
            needs[name, "claim", "mirror"] = None
        if settings.on_failure == "dead-letter" and (settings.bury_dead or not holds_dead(name, settings.dead_queue)):
            target = queue_for(name, settings.dead_queue)
            needs |= dict.fromkeys((target, action, "on_failure is dead-letter") for action in ("send", "admin"))
    return list(needs)
