"""Finds queues by name for credentials that may not see all queues."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice

import msgspec

from queuey.api.queues import QueueInfo
from queuey.client._async.client import AsyncClient
from queuey.client.errors import InvalidRequest, NotAllowed, QueueNotFound
from queuey.client.results import Queue

MAX_PAGE = 1000
MAX_NAMES = 100


class Lookup(msgspec.Struct, frozen=True):
    """The queues that a credential can see among some names.

    Only ``absent`` queues certainly do not exist. A queue missing from a list, or a refusal, does not prove that.

    Attributes:
        found: Visible queues by name.
        absent: Names for which the service answered 404: the queue does not exist.
        hidden: Names for which the service answered 403. The queue exists, except perhaps in an application with
            users.
    """

    found: Mapping[str, Queue | QueueInfo] = {}
    absent: frozenset[str] = frozenset()
    hidden: frozenset[str] = frozenset()


async def find_queues(client: AsyncClient, names: Iterable[str]) -> Lookup:
    """Finds queues in the list of queues, and queries the missing ones one by one.

    Raises:
        ClientError: The service refuses the call or is unavailable.

    Example:
        >>> lookup = await find_queues(client, ["orders", "nothing"])
        >>> lookup.found["orders"].partitions, lookup.absent
        (1, frozenset({'nothing'}))
    """
    requested = set(names)
    queues: dict[str, Queue | QueueInfo] = await _list_matching(client, requested)
    absent, hidden = set(), set()
    for name in sorted(requested - queues.keys()):
        try:
            queues[name] = await client.info(name)
        except QueueNotFound:
            absent.add(name)
        except NotAllowed:
            hidden.add(name)
    return Lookup(queues, frozenset(absent), frozenset(hidden))


async def rights_for(client: AsyncClient, names: Iterable[str]) -> dict[str, frozenset[str]]:
    """Returns the allowed actions on any number of queues; see :meth:`~queuey.client.Client.rights`.

    Raises:
        ClientError: The service refuses the call or is unavailable.
    """
    rights: dict[str, frozenset[str]] = {}
    remaining = iter(sorted(set(names)))
    while batch := list(islice(remaining, MAX_NAMES)):
        rights |= await client.rights(batch)
    return rights


async def _list_matching(client: AsyncClient, names: set[str]) -> dict[str, Queue | QueueInfo]:
    """Reads the list of queues from one requested name to the next. Pages grow where many requested names are close.

    Returns what it has found so far if the credential may not list queues.
    """
    queues: dict[str, Queue | QueueInfo] = {}
    remaining, limit = sorted(names, reverse=True), 1
    while remaining:
        try:
            page = await client.queue_page(start=remaining[-1], limit=limit)
        except NotAllowed:
            return queues  # The caller may not list queues, but may see some of them.
        except InvalidRequest as error:
            if "offset" not in error.fields:
                raise
            return queues  # The credential's patterns match too few queues for a list.
        matches = {queue.name: queue for queue in page.queues if queue.name in names}
        queues |= matches
        limit = min(MAX_PAGE, 2 * len(matches) + 1)
        start = remaining.pop()
        last = page.queues[-1].name if page.queues else start
        while remaining and (remaining[-1] <= last or page.next is None):
            remaining.pop()
    return queues
