"""Which queues a group subscribes to, and how many partitions each has now.

The member that leads looks them up for all, by a :class:`QueueFinder`::

    idle ──look_up(wanted)──► looking ──found──► resting ──time over, asked, or wanted more──► looking
      ▲                         │ ▲ │               │
      │                         │ └─┴─failed, later─┘
      └───────────look_up(nothing): it leads no more┘
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import suppress
from random import uniform

import msgspec

from qdo.errors import CoordinationLost, QdoError, StoreChanged
from qdo.partitions import Queue
from qdo.subscriptions import Subscription
from qdo.tasks import happens
from queuey.client import AsyncClient, ClientError, NotAllowed, NotFound, QueueNotFound, RetryPolicy
from queuey.client import Queue as Described

log = logging.getLogger("qdo.consumer")

ONE_BY_ONE = 5
"""At most so many queues are looked up by one call each; for more, a listing is read."""
LISTED = 1000
"""Queues in one page of the listing."""
SHORTEST = 1.0
"""The least seconds between two look-ups, however often one is asked for."""
_BACKOFF = RetryPolicy(base=0.25, cap=5.0)
"""How long to pause between attempts while the service cannot say."""


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
        # A caller that may read another application's queues may not list them.
        if subscription.patterns:
            raise
    return await _informed(client, subscription.names)


async def identify(client: AsyncClient) -> str:
    """Returns the id of the service's store.

    Raises:
        QdoError: The service does not say it.
        ClientError: It does not answer.
    """
    try:
        return (await client.hello()).id
    except NotFound as error:
        raise QdoError(
            f"the service at {client.servers[0].root} does not say which store it has: it is older than this program"
        ) from error


async def ask(client: AsyncClient, subscription: Subscription) -> None:
    """Checks that the service says which queues there are; costs it one small read.

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
    """Asks for each queue separately, which costs the service more than a listing."""
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


class QueueFinder:
    """Finds the queues that the members of a group want: now and then, and when asked to.

    Args:
        client: To ask the service with.
        own: What its own member wants. Of other members' queues, those of the same application and service are looked
            up.
        every: Seconds between look-ups.
        prepare: Awaited with the id of the service's store whenever its member begins to lead, before it says anything.
        changed: Called when other queues were found.
        failed: Called when it cannot find any until an operator fixes the cause.

    Attributes:
        own: The same; names the service's store as soon as :meth:`begin` has asked for it.
    """

    def __init__(
        self,
        client: AsyncClient,
        own: Subscription,
        *,
        every: float,
        prepare: Callable[[str], Awaitable[None]],
        changed: Callable[[], None],
        failed: Callable[[Exception], None],
    ) -> None:
        self.own = own
        self._client = client
        self._every = every
        self._prepare = prepare
        self._changed = changed
        self._failed = failed
        self._wanted: Collection[Subscription] = ()
        self._found: Mapping[Queue, int] | None = None
        self._missing: frozenset[str] = frozenset()
        self._foreign: set[tuple[str, str]] = set()
        self._asked = asyncio.Event()
        self._more = asyncio.Event()
        self._leads = asyncio.Event()

    @property
    def found(self) -> Mapping[Queue, int] | None:
        """The queues that the last look-up found, with their partitions; None: there was none yet."""
        return self._found

    async def begin(self) -> None:
        """Asks for the id of the service's store, and whether it lists queues, until it answers.

        Raises:
            ClientError: The service refuses.
            QdoError: It does not say which store it has.
        """
        failures = 0
        while not self.own.service:
            try:
                service = await identify(self._client)
                if self.own:
                    await ask(self._client, self.own)
                self.own = msgspec.structs.replace(self.own, service=service)
            except ClientError as error:
                if not error.temporary:
                    raise
                failures += 1
                await self._pause_after(failures, "the service does not answer now, trying on", error)

    def look_up(self, wanted: Collection[Subscription]) -> None:
        """Says what members want; nothing: the member does not lead."""
        if set(wanted) == set(self._wanted):
            return
        self._wanted = wanted
        if wanted:
            self._leads.set()
            self._more.set()
            self._asked.set()
        else:
            self._leads.clear()
            self._found = None

    def soon(self) -> None:
        """Asks for a look-up, because a queue was found to be gone."""
        self._asked.set()

    async def run(self) -> None:
        """Looks queues up until it is stopped."""
        failures = 0
        while True:
            await self._leads.wait()
            self._asked.clear()
            self._more.clear()
            try:
                await self._check_once()
                failures = 0
            except (ClientError, QdoError) as error:
                failures += 1
                if not (error.temporary if isinstance(error, ClientError) else isinstance(error, CoordinationLost)):
                    self._failed(error)
                await self._pause_after(failures, "cannot look for queues now, trying on", error)
            except Exception:
                log.exception("queues could not be read from the service")
                await self._pause()
            else:
                await self._pause()

    async def _check_once(self) -> None:
        """Looks queues up once.

        Raises:
            ClientError: The service cannot say.
            StoreChanged: It has another store than before.
            CoordinationError
        """
        wanted = self.own.with_all(self._wanted)
        self._log_foreign({(one.service, one.application) for one in self._wanted})
        service = await identify(self._client)
        if service != wanted.service:
            raise StoreChanged(
                f"the service at {self._client.servers[0].root} has the store {service} now, and this member began "
                f"with {wanted.service}: it has to be started again; all addresses must be of one store"
            )
        if self._found is None:
            await self._prepare(service)
        counts = await discover(self._client, wanted)
        if not self._leads.is_set():
            return
        missing = wanted.names - counts.keys()
        if missing - self._missing:
            log.warning("queues that do not exist: %s", ", ".join(sorted(missing - self._missing)))
        self._missing = missing
        found = {Queue(service, wanted.application, name): count for name, count in counts.items()}
        if found != self._found:
            self._found = found
            self._changed()

    def _log_foreign(self, works_for: set[tuple[str, str]]) -> None:
        """Says once that members get nothing because they work for something else."""
        own = (self.own.service, self.own.application)
        foreign = works_for - {own}
        if foreign - self._foreign:
            log.error(
                "members use %s, but this leader uses %s, so they get no partitions. All members of a group must "
                "use one application and services with one store",
                ", ".join("/".join(each) for each in sorted(foreign)),
                "/".join(own),
            )
        self._foreign = foreign

    async def _pause_after(self, failures: int, what: str, error: Exception) -> None:
        """Says that something failed, the first time so that it is heard, and rests ever longer."""
        log.log(logging.DEBUG if failures > 1 else logging.WARNING, "%s: %s", what, error)
        await asyncio.sleep(min(_BACKOFF.pause(failures, uniform(0.5, 1.0)), self._every))  # noqa: S311 - spreads load

    async def _pause(self) -> None:
        """Rests until the next look-up: briefly if a queue is gone, not at all if other queues are wanted."""
        shortest = min(SHORTEST, self._every)
        rest = max(0.0, self._every * uniform(0.9, 1.1) - shortest)  # noqa: S311 - so that leaders do not ask together
        for event, seconds in ((self._more, shortest), (self._asked, rest)):
            await happens(event, seconds)
            if self._more.is_set():
                return
