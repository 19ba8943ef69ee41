"""Finds the queues that a group subscribes to, their partition counts, and the service's refusals.

Every member has a :class:`QueueFinder`. The leader's finder looks up queues for all members. The others find out what
their own credential may see, and look up for the leader the queues that it may not see::

    idle ──look_up, follow──► looking ──found──► resting ──interval, request, or a new subscription──► looking
                                ▲ │
                                └─┴─failed, after a pause
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from itertools import islice
from random import uniform

import msgspec

from qdo.errors import CoordinationLost, QdoError, StoreChanged
from qdo.group.records import Visibility
from qdo.group.refusals import LIST_REFUSAL_KEY, Refusals
from qdo.loops import wait_for_event
from qdo.partitions import Queue, Subscription
from queuey.client import AsyncClient, ClientError, InvalidRequest, NotAllowed, NotAuthenticated, RetryPolicy
from queuey.client.lookup import find_queues, rights_for

log = logging.getLogger("qdo.consumer")

LIST_PAGE_SIZE = 1000
MAX_REPORTED_QUEUES = 5000
"""Max queues that a member reports, hidden ones included: with the longest names they fit into a node of ZooKeeper."""
MIN_LOOK_UP_INTERVAL = 1.0
"""Min seconds between two look-ups, however often one is requested."""
_BACKOFF = RetryPolicy(deadline=0.0, base=0.25, cap=5.0)
"""Pauses between attempts while look-ups fail. The client itself does not repeat them."""


async def discover_queues(
    client: AsyncClient, subscription: Subscription, *, listed: int = LIST_PAGE_SIZE
) -> dict[str, int]:
    """Returns the partition counts of the subscribed queues that the caller may see.

    Raises:
        ClientError: The service does not answer or refuses.
    """
    counts = await _find_partition_counts(client, subscription, subscription.names, listed)
    return {name: count for name, count in counts.items() if count}


async def _find_partition_counts(
    client: AsyncClient, subscription: Subscription, names: Iterable[str], listed: int = LIST_PAGE_SIZE
) -> dict[str, int]:
    counts: dict[str, int] = {}
    for text in subscription.literal_prefixes():
        counts |= await _list_partition_counts(client, subscription, text, listed)
    return await _look_up_partition_counts(client, set(names) - counts.keys()) | counts


async def _list_partition_counts(
    client: AsyncClient, subscription: Subscription, prefix: str, listed: int = LIST_PAGE_SIZE
) -> dict[str, int]:
    counts: dict[str, int] = {}
    start: str | None = prefix
    while start is not None and start.startswith(prefix):
        page = await client.queue_page(start=start or None, limit=listed)
        counts |= {queue.name: queue.partitions for queue in page.queues if subscription.matches_name(queue.name)}
        start = page.next
    return counts


async def _look_up_partition_counts(client: AsyncClient, names: Iterable[str]) -> dict[str, int]:
    result = await find_queues(client, names)
    return dict.fromkeys(result.absent, 0) | {name: queue.partitions for name, queue in result.found.items()}


async def read_store_id(client: AsyncClient) -> str:
    """Returns the id of the service's store. Raises ClientError if the service does not answer."""
    return (await client.hello()).id


async def find_visible_patterns(client: AsyncClient, subscription: Subscription) -> tuple[str, ...]:
    """Returns patterns of the queues that the caller may see. Costs the service one small read.

    Some queues may be read but not listed, such as public queues and those of another application. Their names are
    added.

    Raises:
        ClientError: The service refuses to list queues.
    """
    refused: ClientError | None = None
    patterns: tuple[str, ...] = ()
    try:
        patterns = (await client.queue_page(limit=1)).patterns
    except (NotAllowed, InvalidRequest) as error:
        refused = error
    listed = Visibility(patterns)
    readable_names = await find_readable_names(
        client, [name for name in subscription.names if not listed.includes(name)]
    )
    if refused is not None and (subscription.patterns or not readable_names):
        raise refused
    return (*patterns, *sorted(readable_names))


async def find_readable_names(client: AsyncClient, names: Collection[str]) -> set[str]:
    return {name for name, actions in (await rights_for(client, names)).items() if "read" in actions}


class QueueFinder:
    """Looks up queues periodically and on request: for all members if its own member leads.

    Args:
        client: The client of the service.
        own: The own member's subscription. Other members' subscriptions count only for the same application and
            service.
        interval: Seconds between look-ups.
        prepare: Awaited with the id of the service's store whenever the member begins to lead, before the first result.
        changed: Called when the queues, or those that the member may see, have changed.
        failed: Called with an error that requires a correction.
        refusals: Records refusals.

    Attributes:
        own_subscription: The subscription; :meth:`begin` adds the id of the service's store.
        sight: The queues that the own member may see.
        partition_counts: While leading, the partition counts of the queues at the last look-up, 0 for queues that do
            not exist; None before the first one.
        unseen: While leading, queues that may exist, but that no subscribed member may see.
    """

    def __init__(
        self,
        client: AsyncClient,
        own: Subscription,
        *,
        interval: float,
        prepare: Callable[[str], Awaitable[None]],
        changed: Callable[[], None],
        failed: Callable[[Exception], None],
        refusals: Refusals,
    ) -> None:
        self.own_subscription = own
        self.sight = Visibility()
        self.partition_counts: Mapping[Queue, int] | None = None
        self.unseen: AbstractSet[Queue] = frozenset()
        self._client = client.with_retry(_BACKOFF)
        self._every = interval
        self._prepare = prepare
        self._changed = changed
        self._failed = failed
        self._refusals = refusals
        self._wanted: Collection[Subscription] = ()
        self._held: AbstractSet[Queue] = frozenset()
        self._leader: Visibility | None = None
        self._prepared = False
        self._missing: AbstractSet[str] = frozenset()
        self._foreign: set[tuple[str, str]] = set()
        self._requested = asyncio.Event()
        self._more = asyncio.Event()
        self._begun = asyncio.Event()

    async def begin(self) -> None:
        """Requests the id of the service's store and the visible queues, until the service answers.

        Raises:
            ClientError: The service refuses.
            QdoError: The service does not return the id of its store.
        """
        failures = 0
        while not self.own_subscription.service:
            try:
                service = await read_store_id(self._client)
                if self.own_subscription:
                    self.sight = Visibility(await find_visible_patterns(self._client, self.own_subscription))
                self.own_subscription = msgspec.structs.replace(self.own_subscription, service=service)
            except ClientError as error:
                if not error.temporary:
                    raise
                failures += 1
                await self._log_and_pause(failures, "the service does not answer now, retrying", error)

    def look_up(self, subscriptions: Collection[Subscription], held: AbstractSet[Queue]) -> None:
        self._held = held
        if set(subscriptions) != set(self._wanted):
            self._wanted = subscriptions
            self._request_now()

    def follow(self, leader: Visibility | None, held: AbstractSet[Queue]) -> None:
        self._held = held
        if not self._wanted and self._begun.is_set() and leader == self._leader:
            return
        self._leader = leader
        self._wanted, self.partition_counts, self._prepared = (), None, False
        self.warn_of_unseen_queues(frozenset())
        self._request_now()

    def _request_now(self) -> None:
        for event in (self._begun, self._more, self._requested):
            event.set()

    def warn_of_unseen_queues(self, unseen: AbstractSet[Queue]) -> None:
        if new := unseen - self.unseen:
            log.warning(
                "no subscribed member may see these queues: %s. If they exist, their partitions stay with their "
                "owners, and no others are assigned. Run a worker with a key for them",
                ", ".join(sorted(queue.name for queue in new)),
            )
        self.unseen = unseen

    def request_look_up(self) -> None:
        self._requested.set()

    async def run(self) -> None:
        """Looks up until cancelled, from the first :meth:`look_up` or :meth:`follow` on; retries after errors."""
        failures = 0
        while True:
            await self._begun.wait()
            self._requested.clear()
            self._more.clear()
            before = self.sight, self.partition_counts
            try:
                await self._refresh_once()
                failures, failure = 0, None
            except Exception as error:  # noqa: BLE001 - logged, and the loop continues
                failures, failure = failures + 1, error
                self._handle_failure(error, failures)
            if before != (self.sight, self.partition_counts):
                self._changed()
            if failure is None:
                await self._wait_for_next()
            else:
                await self._log_and_pause(failures, "cannot look up queues now, retrying", failure)

    def _handle_failure(self, error: Exception, failures: int) -> None:
        if not isinstance(error, ClientError | QdoError):
            log.error("queues could not be read from the service", exc_info=error)
        elif not (error.temporary if isinstance(error, ClientError) else isinstance(error, CoordinationLost)):
            self._failed(error)
        if isinstance(error, NotAuthenticated | NotAllowed) and failures > 1:
            self._forget_sight()

    async def _refresh_once(self) -> None:
        """Sets ``sight``, and ``partition_counts`` if the member leads; else reports queues hidden from the leader.

        Without patterns, it counts as a refusal to list queues if the member may see none of its named queues.
        """
        subscriptions, others = self._wanted, dict[str, int]()
        if subscriptions:
            service = await self._identify()
            if not self._prepared:
                await self._prepare(service)
                self._prepared = True
        patterns = await find_visible_patterns(self._client, self.own_subscription)
        if subscriptions:
            await self._find_for_all(subscriptions)
        elif self._leader is not None and "*" not in self._leader.patterns:
            others = await self._find_queues_hidden_from_leader(self._leader)
        hidden = self._refusals.hidden
        hidden -= await find_readable_names(self._client, hidden)
        limit = MAX_REPORTED_QUEUES - len(others)
        self.sight = Visibility(patterns, others, frozenset(sorted(hidden)[:limit]))
        if self.own_subscription.patterns or any(map(self.sight.includes, self.own_subscription.names)):
            self._refusals.end_refusal(LIST_REFUSAL_KEY)
        else:
            self._refusals.record(LIST_REFUSAL_KEY)

    async def _identify(self) -> str:
        service = await read_store_id(self._client)
        if service != self.own_subscription.service:
            raise StoreChanged(
                f"the service at {self._client.servers[0].root} has the store {service} now, and this member began "
                f"with {self.own_subscription.service}: it must be started again; all addresses must be of one store"
            )
        return service

    async def _find_for_all(self, subscriptions: Collection[Subscription]) -> None:
        own = self.own_subscription.service, self.own_subscription.application
        self._log_foreign_members({(s.service, s.application) for s in subscriptions})
        subscription, held = self.own_subscription.with_all(subscriptions), self._held_names()
        counts = dict[str, int]()
        for text in subscription.literal_prefixes():
            try:
                counts |= await _list_partition_counts(self._client, subscription, text)
            except (NotAllowed, InvalidRequest) as error:
                # Members that may list these queues report them; queues that were found before are kept.
                log.debug("queues whose names begin with %r cannot be listed: %s", text, error)
        counts |= await _look_up_partition_counts(self._client, (subscription.names | held) - counts.keys())
        if not self._wanted:
            return
        missing = {name for name in subscription.names if counts.get(name) == 0}
        if new := missing - self._missing:
            log.warning("queues that do not exist: %s", ", ".join(sorted(new)))
        self._missing = missing
        self.partition_counts = {Queue(*own, name): count for name, count in counts.items()}

    async def _find_queues_hidden_from_leader(self, leader: Visibility) -> dict[str, int]:
        counts = await _find_partition_counts(
            self._client, self.own_subscription, self.own_subscription.names | self._held_names()
        )
        others = {name: count for name, count in sorted(counts.items()) if not leader.includes(name)}
        if len(others) > MAX_REPORTED_QUEUES:
            text = "the group's leader may not see %d queues of this member's subscription; reporting only %d of them"
            log.warning(text, len(others), MAX_REPORTED_QUEUES)
        return dict(islice(others.items(), MAX_REPORTED_QUEUES))

    def _held_names(self) -> set[str]:
        return {
            queue.name
            for queue in self._held
            if queue[:2] == (self.own_subscription.service, self.own_subscription.application)
        }

    def _forget_sight(self) -> None:
        self._refusals.record(LIST_REFUSAL_KEY)
        self.sight = Visibility()
        if self._prepared:
            self.partition_counts = {}

    def _log_foreign_members(self, works_for: set[tuple[str, str]]) -> None:
        own = (self.own_subscription.service, self.own_subscription.application)
        foreign = works_for - {own}
        if foreign - self._foreign:
            log.error(
                "members use %s, but this leader uses %s, so they get no partitions. All members of a group must "
                "use one application and services with one store",
                ", ".join("/".join(pair) for pair in sorted(foreign)),
                "/".join(own),
            )
        self._foreign = foreign

    async def _log_and_pause(self, failures: int, what: str, error: Exception) -> None:
        log.log(logging.DEBUG if failures > 1 else logging.WARNING, "%s: %s", what, error)
        await asyncio.sleep(min(_BACKOFF.pause(failures, uniform(0.5, 1.0)), self._every))  # noqa: S311 - spreads load

    async def _wait_for_next(self) -> None:
        shortest = min(MIN_LOOK_UP_INTERVAL, self._every)
        pause = max(0.0, self._every * uniform(0.9, 1.1) - shortest)  # noqa: S311 - spreads the leaders' requests
        for event, seconds in ((self._more, shortest), (self._requested, pause)):
            await wait_for_event(event, seconds)
            if self._more.is_set():
                return
