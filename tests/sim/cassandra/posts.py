"""A storm over the use case of posting, which repeats undone posts: on the Cassandra store, on a simulated cluster.

Clients post single messages and batches over all partitions, with keys, delays and ``X-After``. Some leave before they
are answered. Meanwhile the queue is changed and purged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial

from queuey.access.queue_access import QueueAccess
from queuey.messages.posts import Draft, MessageUseCases, RepeatBudget
from queuey.model.errors import KeyInUse, QueueChanged, QueueyError, StoreBusy, StoreUnavailable
from queuey.model.ids import Position
from queuey.model.messages import PostResult, Queue, QueueSpec
from queuey.runtime.limits import Limits
from queuey.runtime.metrics import Metrics
from queuey.storage.deadlines import GivenUp
from tests.sim.cassandra.cluster import Cluster
from tests.sim.cassandra.messages import (
    APPLICATION,
    PARTITIONS,
    QUEUE,
    TTLS,
    MessageStorm,
    Outcome,
    Post,
    Purge,
    Reader,
    Site,
)
from tests.sim.cassandra.pace import SOON, Pace
from tests.sim.world import World, begin

ON_LOOP = (5, 7)
"""The seeds, modulo 8, of histories whose sites read on their loops."""


class Generous(RepeatBudget):
    """A budget without a limit."""

    def try_acquire(self, now: float) -> bool:
        self.repeated += 1
        return True


class PostSite(Site):
    """A web process with its use cases.

    Args:
        generous: Posts may be repeated without a limit.
        on_loop: It reads on its loop, through the loop's client.
    """

    def __init__(self, world: World, cluster: Cluster, *, generous: bool, on_loop: bool) -> None:
        self._generous = generous
        self._on_loop = on_loop
        self.repeated = 0
        super().__init__(world, cluster)

    def start(self) -> None:
        super().start()
        if self._on_loop:
            with self.core.loop.running():
                self.store.adopt(self.core.loop)
        self.use_cases = MessageUseCases(self.store, Limits(), Metrics(), self.core)
        self.budget = self.use_cases._budget
        if self._generous:
            self.budget = self.use_cases._budget = Generous()

    def crash(self) -> None:
        self.repeated += self.budget.repeated
        super().crash()

    def access(self, queue: Queue) -> QueueAccess:
        return QueueAccess(self.store, queue)

    async def post(self, sent: Post, drafts: list[Draft]) -> PostResult:
        """Posts once through the use case, to the queue's present row. Raises GivenUp if the caller cancels it."""

        async def post(queue: Queue) -> PostResult:
            sent.qid = queue.qid
            return await self.use_cases.post(queue, drafts, after=sent.after, key=sent.key or None)

        try:
            return await self.access(await self.call(self.store.catalogue.queue(APPLICATION, QUEUE))).apply(post)
        except asyncio.CancelledError:
            raise GivenUp("unknown") from None


class PostReader(Reader):
    """A reader that notices changes of the queue, and starts again after a purge."""

    def __init__(self, site: Site, queue: Queue, partition: int, scale: float, purged: Callable[[Queue], None]) -> None:
        super().__init__(site, queue, partition, scale)
        self._purged = purged

    async def read_on(self) -> None:
        """Reads until the end of the history, or until a purge replaces the queue: then ``purged`` gets the new one."""
        while True:  # bounded: by the end of the history
            try:
                await super().read_on()
            except QueueChanged:
                await asyncio.sleep(0.01)
                try:
                    queue = await self._site.call(self._site.store.catalogue.queue(APPLICATION, QUEUE, fresh=True))
                except StoreUnavailable:
                    continue
                if queue.qid != self.qid:
                    self._purged(queue)
                    return
                self._queue = queue


class PostStorm(MessageStorm):
    """One simulated history. In a quarter of the seeds sites read on their loops, through the client."""

    sites: list[PostSite]  # type: ignore[assignment]
    readers: list[PostReader]  # type: ignore[assignment]
    last: Sequence[PostReader]
    always_on_loop = False

    def __init__(self, seed: int, pace: Pace = SOON) -> None:
        self._generous = seed % 4 > 0
        self._on_loop = self.always_on_loop or seed % 8 in ON_LOOP
        super().__init__(seed, pace)
        rng = self.world.rng
        self.weather.lost, self.weather.late = rng.choice((0.0, 0.05, 0.15)), rng.choice((0.0, 0.2, 0.4))
        self.weather.stalls = rng.choice((0.0, 0.05))

    @property
    def repeated(self) -> int:
        return sum(site.repeated + site.budget.repeated for site in self.sites)

    def _new_site(self) -> PostSite:
        return PostSite(self.world, self.cluster, generous=self._generous, on_loop=self._on_loop)

    def planned_events(self) -> dict[Callable[[], None], int]:
        rng = self.world.rng
        return {
            self._post: rng.randint(6, 24),
            self._post_under_key: rng.choice((0, 4, 10)),
            self._crash_and_restart: rng.choice((0, 0, 1, 2)),
            self._cause_fault: rng.choice((1, 3, 5)),
            self._update: rng.choice((0, 0, 1, 3)),
            self._purge: rng.choice((0, 0, 0, 1)),
        }

    # Events

    def start_readers(self, site: Site, queue: Queue | None = None) -> None:
        for partition in range(1, PARTITIONS + 1):
            self.read_partition(site, partition, queue or self.queue)

    def read_partition(self, site: Site, partition: int, queue: Queue) -> None:
        again = partial(self.read_partition, site, partition)
        reader = PostReader(site, queue, partition, self.pace.scale, again)
        self.readers.append(reader)
        site.begin(reader.read_on())

    async def _read_all(self) -> None:
        site = self.sites[0]
        self.queue = await site.call(site.store.catalogue.queue(APPLICATION, QUEUE, fresh=True))
        await self._read_to_the_end(
            [PostReader(site, self.queue, number + 1, 1.0, lambda _queue: None) for number in range(PARTITIONS)]
        )

    def _post(self, after: Position | None = None) -> None:
        rng = self.world.rng
        delayed, ttl = rng.random() < 0.15, rng.choice(TTLS)
        drafts = [
            Draft(
                str(next(self._numbers)),
                partition=rng.randint(1, PARTITIONS),
                ttl=ttl if rng.random() < 0.8 else rng.choice(TTLS),
                delay=rng.choice((0.5, 4.0)) * self.pace.scale if delayed else 0.0,
            )
            for _ in range(rng.choice((1, 1, 2, 5)))
        ]
        self._send(drafts, after=after)

    def _post_under_key(self) -> None:
        key = self.world.rng.choice("ab")
        bodies = [f"key {key}"] if key == "a" else ["key b1", "key b2"]
        self._send([Draft(body, partition=number + 1, ttl=3600) for number, body in enumerate(bodies)], key=key)

    def _send(self, drafts: list[Draft], key: str = "", after: Position | None = None) -> None:
        """Posts drafts at a random site and records the outcome. Some callers cancel the request.

        After an acknowledged post without a key it may post again.
        """
        site = self.pick_site()
        assert isinstance(site, PostSite)
        sent = Post([str(draft.body) for draft in drafts], self.world.now, key, after=after)
        sent.partitions, sent.delayed = [draft.partition or 0 for draft in drafts], any(one.delay for one in drafts)
        sent.site, sent.life = site, site.process.life
        self.posts.append(sent)

        def done(result: PostResult | None, error: Exception | None) -> None:
            sent.ended = self.world.now
            if result is None:
                sent.outcome = outcome_of(error)
                return
            sent.outcome, sent.locations = "acknowledged", result.locations
            if not key:
                self.maybe_post_after(max(position for _, position in result.locations))

        give_up = begin(site.core, site.post(sent, [self._address_draft(draft) for draft in drafts]), done)
        if self.world.rng.random() < 0.1:
            site.process.soon(self.world.random_time(0.3 * self.pace.scale), give_up)

    def _address_draft(self, draft: Draft) -> Draft:
        """Returns the draft as it is posted. Subclasses may change it."""
        return draft

    def maybe_post_after(self, last: Position) -> None:
        if self.world.rng.random() < 0.2:
            self.world.after(0.0, partial(self._post, last))

    def _update(self) -> None:
        ttl = self.world.rng.choice((3600, 7200))
        self._change(lambda site, queue: site.call(site.store.catalogue.update_queue(queue, QueueSpec(ttl=ttl))))

    def _purge(self) -> None:
        async def purge(site: PostSite, queue: Queue) -> None:
            await site.call(site.store.catalogue.purge_queue(queue))
            self.purges.append(Purge(queue.qid, self.world.now))

        self._change(purge)

    def _change(self, change: Callable[[PostSite, Queue], Awaitable[object]]) -> None:
        """Changes the queue at a random site. Ignores errors."""
        site = self.pick_site()
        assert isinstance(site, PostSite)

        async def work() -> None:
            with suppress(QueueyError):
                queue_row = await site.call(site.store.catalogue.queue(APPLICATION, QUEUE))
                await site.access(queue_row).apply(lambda queue: change(site, queue))

        site.begin(work())


def outcome_of(error: Exception | None) -> Outcome:
    """Returns the outcome that an error tells; ``none`` for errors that refuse the request."""
    if isinstance(error, KeyInUse | StoreBusy):
        return "none"
    if isinstance(error, StoreUnavailable):
        return error.outcome
    assert isinstance(error, QueueyError), error
    return "none"
