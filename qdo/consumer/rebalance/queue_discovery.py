"""Which queues a group subscribes to, how many partitions each has now, and what the service refuses to a member.

Every member has a :class:`QueueFinder`. That of the leader looks queues up for all members. The others find out what
they themselves may see, and look up for the leader what it may not::

    idle ──look_up, follow──► looking ──found──► resting ──time over, asked, or something else is wanted──► looking
                                ▲ │
                                └─┴─failed, later
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from itertools import islice
from random import uniform

import msgspec

from qdo.coordination import Sight
from qdo.errors import CoordinationLost, QdoError, StoreChanged
from qdo.partitions import Queue, Subscription
from qdo.tasks import happens
from queuey.client import AsyncClient, ClientError, InvalidRequest, NotAllowed, NotAuthenticated, NotFound, RetryPolicy
from queuey.client.lookup import look_up, rights_for

log = logging.getLogger("qdo.consumer")

LISTED = 1000
"""Number of queues in one page of the listing."""
MAX_OTHERS = 5000
"""Max queues that a member reports, hidden ones included: with the longest names they fit into a node of ZooKeeper."""
SHORTEST = 1.0
"""Min seconds between two look-ups, however often one is asked for."""
_BACKOFF = RetryPolicy(base=0.25, cap=5.0)
"""Pauses between attempts while the service cannot say."""


async def discover(client: AsyncClient, subscription: Subscription, *, listed: int = LISTED) -> dict[str, int]:
    """Returns the number of partitions of each wanted queue that the caller sees.

    Raises:
        ClientError: The service cannot say.
    """
    found = await _find(client, subscription, subscription.names, listed)
    return {name: count for name, count in found.items() if count}


async def _find(
    client: AsyncClient, subscription: Subscription, names: Iterable[str], listed: int = LISTED
) -> dict[str, int]:
    """Returns the partitions of the wanted queues that the caller sees, 0 for names that no queue has."""
    found: dict[str, int] = {}
    for text in subscription.literal_prefixes():
        found |= await _list(client, subscription, text, listed)
    return await _look_up(client, set(names) - found.keys()) | found


async def _list(client: AsyncClient, subscription: Subscription, stretch: str, listed: int = LISTED) -> dict[str, int]:
    """Returns the partitions of the wanted queues whose names begin with a text."""
    found: dict[str, int] = {}
    start: str | None = stretch
    while start is not None and start.startswith(stretch):
        page = await client.queue_page(start=start or None, limit=listed)
        found |= {queue.name: queue.partitions for queue in page.queues if subscription.wants(queue.name)}
        start = page.next
    return found


async def _look_up(client: AsyncClient, names: Iterable[str]) -> dict[str, int]:
    """Returns the partitions of the queues that the caller sees, 0 for names that no queue has."""
    named = await look_up(client, names)
    return dict.fromkeys(named.absent, 0) | {name: queue.partitions for name, queue in named.found.items()}


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


async def visible(client: AsyncClient, subscription: Subscription) -> tuple[str, ...]:
    """Returns patterns of the queues that the caller may see; costs the service one small read.

    A caller may read queues that it may not list, such as public ones and another application's: their names are added.

    Raises:
        ClientError: The service refuses to say which queues there are.
    """
    refused: ClientError | None = None
    patterns: tuple[str, ...] = ()
    try:
        patterns = (await client.queue_page(limit=1)).patterns or ("*",)
    except (NotAllowed, InvalidRequest) as error:
        refused = error
    listed = Sight(patterns)
    seen = await readable(client, [name for name in subscription.names if not listed.covers(name)])
    if refused is not None and (subscription.patterns or not seen):
        raise refused
    return (*patterns, *sorted(seen))


async def readable(client: AsyncClient, names: Collection[str]) -> set[str]:
    """Returns those names under which the caller may read a queue, or might if there were one."""
    return {name for name, actions in (await rights_for(client, names)).items() if "read" in actions}


class QueueFinder:
    """Finds queues now and then, and when asked to: those that all members want if its own member leads.

    Args:
        client: To ask the service with.
        own: What its own member wants. Of other members' queues, those of the same application and service are looked
            up.
        every: Seconds between look-ups.
        prepare: Awaited with the id of the service's store whenever its member begins to lead, before it says anything.
        changed: Called when other queues were found, or the member may see others.
        failed: Called when it cannot find any until an operator fixes the cause.
        refusals: Gets what the service refuses.

    Attributes:
        own: The same; names the service's store as soon as :meth:`begin` has asked for it.
        sight: What its own member may see.
        found: While it leads: the queues that the last look-up found, with their partitions, 0 for those that do not
            exist; None: there was none yet.
        unseen: While it leads: queues that may exist, but that no member which wants them may see.
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
        refusals: Refusals,
    ) -> None:
        self.own = own
        self.sight = Sight()
        self.found: Mapping[Queue, int] | None = None
        self.unseen: AbstractSet[Queue] = frozenset()
        self._client = client
        self._every = every
        self._prepare = prepare
        self._changed = changed
        self._failed = failed
        self._refusals = refusals
        self._wanted: Collection[Subscription] = ()
        self._held: AbstractSet[Queue] = frozenset()
        self._leader: Sight | None = None
        self._prepared = False
        self._missing: AbstractSet[str] = frozenset()
        self._foreign: set[tuple[str, str]] = set()
        self._asked = asyncio.Event()
        self._more = asyncio.Event()
        self._begun = asyncio.Event()

    async def begin(self) -> None:
        """Asks for the id of the service's store, and which queues it shows, until it answers.

        Raises:
            ClientError: The service refuses.
            QdoError: It does not say which store it has.
        """
        failures = 0
        while not self.own.service:
            try:
                service = await identify(self._client)
                if self.own:
                    self.sight = Sight(await visible(self._client, self.own))
                self.own = msgspec.structs.replace(self.own, service=service)
            except ClientError as error:
                if not error.temporary:
                    raise
                failures += 1
                await self._pause_after(failures, "the service does not answer now, trying on", error)

    def look_up(self, wanted: Collection[Subscription], held: AbstractSet[Queue]) -> None:
        self._held = held
        if set(wanted) != set(self._wanted):
            self._wanted = wanted
            self._look_now()

    def follow(self, leader: Sight | None, held: AbstractSet[Queue]) -> None:
        self._held = held
        if not self._wanted and self._begun.is_set() and leader == self._leader:
            return
        self._leader = leader
        self._wanted, self.found, self._prepared = (), None, False
        self.warn(frozenset())
        self._look_now()

    def _look_now(self) -> None:
        for event in (self._begun, self._more, self._asked):
            event.set()

    def warn(self, unseen: AbstractSet[Queue]) -> None:
        """Logs once that no member may see these queues."""
        if new := unseen - self.unseen:
            log.warning(
                "no member that wants these queues may see them: %s. If they exist, their partitions stay with their "
                "owners, and no others are assigned. Run a worker with a key for them",
                ", ".join(sorted(queue.name for queue in new)),
            )
        self.unseen = unseen

    def soon(self) -> None:
        """Asks for a look-up, because a queue was found to be gone, or hidden."""
        self._asked.set()

    async def run(self) -> None:
        failures = 0
        while True:
            await self._begun.wait()
            self._asked.clear()
            self._more.clear()
            before = self.sight, self.found
            try:
                await self._check_once()
                failures, failure = 0, None
            except Exception as error:  # noqa: BLE001 - it is logged, and looking goes on
                failures, failure = failures + 1, error
                self._handle_failure(error, failures)
            if before != (self.sight, self.found):
                self._changed()
            if failure is None:
                await self._pause()
            else:
                await self._pause_after(failures, "cannot look for queues now, trying on", failure)

    def _handle_failure(self, error: Exception, failures: int) -> None:
        if not isinstance(error, ClientError | QdoError):
            log.error("queues could not be read from the service", exc_info=error)
        elif not (error.temporary if isinstance(error, ClientError) else isinstance(error, CoordinationLost)):
            self._failed(error)
        if isinstance(error, NotAuthenticated | NotAllowed) and failures > 1:
            self._blind()

    async def _check_once(self) -> None:
        """Looks once what the member may see, and looks queues up: for all if it leads, else what the leader lacks."""
        wanted, others = self._wanted, dict[str, int]()
        if wanted:
            service = await self._identify()
            if not self._prepared:
                await self._prepare(service)
                self._prepared = True
        patterns = await visible(self._client, self.own)
        if wanted:
            await self._find_for_all(wanted)
        elif self._leader is not None and "*" not in self._leader.patterns:
            others = await self._find_others(self._leader)
        hidden = self._refusals.hidden
        hidden -= await readable(self._client, hidden)
        most = MAX_OTHERS - len(others)
        self.sight = Sight(patterns, others, frozenset(sorted(hidden)[:most]))
        if self.own.patterns or any(map(self.sight.covers, self.own.names)):
            self._refusals.over(LISTS)
        else:
            self._refusals.note(LISTS)

    async def _identify(self) -> str:
        service = await identify(self._client)
        if service != self.own.service:
            raise StoreChanged(
                f"the service at {self._client.servers[0].root} has the store {service} now, and this member began "
                f"with {self.own.service}: it has to be started again; all addresses must be of one store"
            )
        return service

    async def _find_for_all(self, wanted: Collection[Subscription]) -> None:
        mine = self.own.service, self.own.application
        self._log_foreign({(one.service, one.application) for one in wanted})
        every, held = self.own.with_all(wanted), self._held_names()
        counts = dict[str, int]()
        for text in every.literal_prefixes():
            try:
                counts |= await _list(self._client, every, text)
            except (NotAllowed, InvalidRequest) as error:
                # Members that may list these queues say which there are; none that was found before is given up.
                log.debug("queues whose names begin with %r cannot be listed: %s", text, error)
        counts |= await _look_up(self._client, (every.names | held) - counts.keys())
        if not self._wanted:
            return
        missing = {name for name in every.names if counts.get(name) == 0}
        if new := missing - self._missing:
            log.warning("queues that do not exist: %s", ", ".join(sorted(new)))
        self._missing = missing
        self.found = {Queue(*mine, name): count for name, count in counts.items()}

    async def _find_others(self, leader: Sight) -> dict[str, int]:
        """Returns the queues that its own member wants or holds and the leader may not see."""
        found = await _find(self._client, self.own, self.own.names | self._held_names())
        others = {name: count for name, count in sorted(found.items()) if not leader.covers(name)}
        if len(others) > MAX_OTHERS:
            text = "the group's leader may not see %d queues that this member wants, and gets the names of %d only"
            log.warning(text, len(others), MAX_OTHERS)
        return dict(islice(others.items(), MAX_OTHERS))

    def _held_names(self) -> set[str]:
        return {queue.name for queue in self._held if queue[:2] == (self.own.service, self.own.application)}

    def _blind(self) -> None:
        """The service refuses to say what there is, so its member sees nothing for now."""
        self._refusals.note(LISTS)
        self.sight = Sight()
        if self._prepared:
            self.found = {}

    def _log_foreign(self, works_for: set[tuple[str, str]]) -> None:
        """Logs once that members get nothing because they work for something else."""
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
        """Logs a failure, the first time as a warning, and rests ever longer."""
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


LISTS = "/"
"""Key of refusals to say which queues there are; no queue has such a name."""
EVERYTHING = ""
"""Key of refusals of whole requests."""


class Refusals:
    """Refusals of the service, from the first one to the last one; an answer in between ends it.

    Args:
        wanted: By the consumer.

    Attributes:
        hidden: Queues that were refused and that only a pattern matches. They may be everybody's business but this
            credential's, so no time is kept of them.
    """

    def __init__(self, wanted: Subscription) -> None:
        self.hidden: set[str] = set()
        self._wanted = wanted
        self._times: dict[str, tuple[float, float]] = {}

    def note(self, what: str) -> None:
        if what not in {LISTS, EVERYTHING, *self._wanted.names} and self._wanted.wants(what):
            self.hidden.add(what)
            return
        now = asyncio.get_running_loop().time()
        self._times[what] = self._times.get(what, (now, now))[0], now

    def over(self, what: str) -> None:
        self._times.pop(what, None)

    @property
    def seconds(self) -> float:
        """The longest time for which anything has been refused."""
        return max((last - first for first, last in self._times.values()), default=0.0)
