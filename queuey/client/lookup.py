"""Looking queues up by name, with credentials that may not see all of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice

import msgspec

from queuey.api.queues import QueueInfo
from queuey.client._async.client import AsyncClient
from queuey.client.errors import InvalidRequest, NotAllowed, QueueNotFound
from queuey.client.results import Queue

MAX_PAGE = 1000
"""Max queues in one page of the list."""
MAX_NAMES = 100
"""Max names in one request for rights."""


class Lookup(msgspec.Struct, frozen=True):
    """The queues that a caller's credential finds under names.

    Only ``absent`` may be acted upon as "does not exist": a list that lacks a queue, or a refusal, does not say so.

    Attributes:
        found: By name.
        absent: Names of no queue; the service answered 404.
        hidden: The service answered 403. In an application with users they need not exist, elsewhere they do.
    """

    found: Mapping[str, Queue | QueueInfo] = {}
    absent: frozenset[str] = frozenset()
    hidden: frozenset[str] = frozenset()


async def look_up(client: AsyncClient, names: Iterable[str]) -> Lookup:
    """Looks queues up in the list, and asks for those by name that it lacks.

    Raises:
        ClientError: The service refuses or is away.

    Example:
        >>> found = await look_up(client, ["orders", "nothing"])
        >>> found.found["orders"].partitions, found.absent
        (1, frozenset({'nothing'}))
    """
    wanted = set(names)
    found: dict[str, Queue | QueueInfo] = await _listed(client, wanted)
    absent, hidden = set(), set()
    for name in sorted(wanted - found.keys()):
        try:
            found[name] = await client.info(name)
        except QueueNotFound:
            absent.add(name)
        except NotAllowed:
            hidden.add(name)
    return Lookup(found, frozenset(absent), frozenset(hidden))


async def rights_for(client: AsyncClient, names: Iterable[str]) -> dict[str, frozenset[str]]:
    """Returns what the caller may do with queues of any number of names; see :meth:`~queuey.client.Client.rights`.

    Raises:
        NotFound: The service is older than this call.
        ClientError: It refuses or is away.
    """
    rights: dict[str, frozenset[str]] = {}
    left = iter(sorted(set(names)))
    while some := list(islice(left, MAX_NAMES)):
        rights |= await client.rights(some)
    return rights


async def _listed(client: AsyncClient, wanted: set[str]) -> dict[str, Queue | QueueInfo]:
    """Reads the list from one wanted name to the next, in pages as large as there are many close together."""
    found: dict[str, Queue | QueueInfo] = {}
    left, limit = sorted(wanted, reverse=True), 1
    while left:
        try:
            page = await client.queue_page(start=left[-1], limit=limit)
        except NotAllowed:
            return found  # the caller lists no queues, but may see some
        except InvalidRequest as error:
            if "offset" not in error.fields:
                raise
            return found  # the credential's patterns match too few queues for a list
        mine = {queue.name: queue for queue in page.queues if queue.name in wanted}
        found |= mine
        limit = min(MAX_PAGE, 2 * len(mine) + 1)
        asked = left.pop()
        last = page.queues[-1].name if page.queues else asked
        while left and (left[-1] <= last or page.next is None):
            left.pop()
    return found
