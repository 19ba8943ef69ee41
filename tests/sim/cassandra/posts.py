"""A storm over the use case of posting, which repeats undone posts: on the Cassandra store, on a simulated cluster.

Clients post single messages and batches over all partitions, with keys, delays and ``X-After``. Some leave before they
are answered. Meanwhile the queue is changed and purged.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from queuey.errors import KeyInUse, QueueChanged, QueueyError, StoreBusy, StoreUnavailable
from queuey.ids import Position
from queuey.messages import PostResult, Queue, QueueSpec
from queuey.metrics import Metrics
from queuey.service import Draft, Limits, QueueAccess
from queuey.service.messages import MessageUseCases, RepeatBudget
from queuey.storage.calls import GivenUp
from tests.sim.cassandra.cluster import Cluster
from tests.sim.cassandra.messages import (
    APPLICATION,
    PARTITIONS,
    QUEUE,
    TTLS,
    MessageStorm,
    Outcome,
    Post,
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

    def _start(self) -> None:
        super()._start()
        if self._on_loop:
            with self.core.loop.running():
                self.store.adopt(self.core.loop)
        self.use_cases = MessageUseCases(self.store, Limits(), Metrics(), self.core)
        if self._generous:
            self.use_cases._budget = Generous()

    def crash(self) -> None:
        self.repeated += self.use_cases._budget.repeated
        super().crash()

    def access(self, queue: Queue) -> QueueAccess:
        return QueueAccess(self.core, self.store, queue, lambda _queue: None)

    async def post(self, sent: Sent, drafts: list[Draft]) -> PostResult:
        """Posts once through the use case, to the queue's present row. Raises GivenUp if the caller cancels it."""

        async def post(queue: Queue) -> PostResult:
            sent.qid = queue.qid
            return await self.use_cases.post(queue, drafts, after=sent.after, key=sent.key or None)

        try:
            queue_row = await self.call(self.store.catalogue.queue(APPLICATION, QUEUE))
            return await self.access(queue_row).apply(post)
        except asyncio.CancelledError:
            raise GivenUp("unknown") from None


@dataclass
class Sent(Post):
    """A client's post.

    Attributes:
        qid: The qid of the queue's row that it was stored by.
        partitions: The partitions of its messages.
        delayed: Whether any message is delayed.
        site, life: The process that sent it, and its life.
        ended: When its client was answered.
    """

    qid: int = 0
    after: Position | None = None
    partitions: list[int] = field(default_factory=list)
    delayed: bool = False
    site: PostSite | None = None
    life: int = 0
    ended: float = float("inf")


@dataclass
class Purge:
    """A purge that was answered."""

    qid: int
    ended: float


class PostReader(Reader):
    """A reader that notices changes of the queue, and starts again after a purge."""

    def __init__(self, site: Site, queue: Queue, partition: int, scale: float, purged: Callable[[Queue], None]) -> None:
        super().__init__(site, queue, partition, scale)
        self.qid = queue.qid
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
    posts: list[Sent]  # type: ignore[assignment]
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
        self.purges: list[Purge] = []

    @property
    def repeated(self) -> int:
        return sum(site.repeated + site.use_cases._budget.repeated for site in self.sites)

    def _new_site(self) -> PostSite:
        return PostSite(self.world, self.cluster, generous=self._generous, on_loop=self._on_loop)

    def _planned_events(self) -> dict[Callable[[], None], int]:
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

    def _start_readers(self, site: Site, queue: Queue | None = None) -> None:
        for partition in range(1, PARTITIONS + 1):
            self._read_partition(site, partition, queue or self.queue)

    def _read_partition(self, site: Site, partition: int, queue: Queue) -> None:
        again = partial(self._read_partition, site, partition)
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
        site = self._pick_site()
        assert isinstance(site, PostSite)
        sent = Sent([str(draft.body) for draft in drafts], self.world.now, key, after=after)
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
                self._maybe_post_after(max(position for _, position in result.locations))

        give_up = begin(site.core, site.post(sent, [self._address_draft(draft) for draft in drafts]), done)
        if self.world.rng.random() < 0.1:
            site.process.soon(self.world.random_time(0.3 * self.pace.scale), give_up)

    def _address_draft(self, draft: Draft) -> Draft:
        """Returns the draft as it is posted. Subclasses may change it."""
        return draft

    def _maybe_post_after(self, last: Position) -> None:
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
        site = self._pick_site()
        assert isinstance(site, PostSite)

        async def work() -> None:
            with suppress(QueueyError):
                queue_row = await site.call(site.store.catalogue.queue(APPLICATION, QUEUE))
                await site.access(queue_row).apply(lambda queue: change(site, queue))

        site.begin(work())

    # Checks

    def _violations(self) -> Iterator[str]:
        if not hasattr(self, "_read_at"):
            yield "end: nothing could be read when all was calm"
            return
        yield from self.cluster.wrong
        for reader in [*self.readers, *self.last]:
            yield from reader.wrong
        for post in self.posts:
            if not post.key:
                yield from self._check_sent(post)
        for key in "ab":
            yield from self._check_key_in_queue([post for post in self.posts if post.key == key])
        if pending := sum(site.store._writer.pending for site in self.sites):
            yield f"end: {pending} messages still wait"

    def _check_sent(self, post: Sent) -> Iterator[str]:
        bodies = {*post.bodies}
        shown = {
            (reader.qid, reader.partition, position)
            for reader in [*self.readers, *self.last]
            for position, body in reader.shown.items()
            if body in bodies
        }
        counts = Counter(body for reader in self.last for body in reader.shown.values() if body in bodies)
        if post.outcome == "none" and shown:
            yield f"none: {post} was shown at {shown}"
        elif post.outcome == "acknowledged":
            told = {(post.qid, *location) for location in post.locations}
            if shown - told:
                yield f"attempt: {post} was shown at {shown - told} as well"
            yield from self._check_acknowledged(post, counts)
        elif 0 < len(counts) < len(bodies) and post.site is not None and post.site.process.life == post.life:
            yield f"whole: of {post} only {counts} is there"

    def _check_acknowledged(self, post: Sent, stored: Counter[str]) -> Iterator[str]:
        """Yields violations by a post that was acknowledged: lost, passed by a reader, misplaced, or out of order.

        It must not be stored in a queue that was purged before it began.
        """
        if [partition for partition, _ in post.locations] != post.partitions:
            yield f"once: {post} lies elsewhere"
        for partition, position in post.locations:
            yield from (
                f"G1: {post} was passed by a reader at {reader.cursor} without being shown"
                for reader in [*self.readers, *self.last]
                if (reader.qid, reader.partition) == (post.qid, partition)
                and position < reader.cursor
                and position not in reader.shown
            )
        if post.qid == self.queue.qid and stored != Counter(post.bodies):
            yield f"lost: of {post} there is {stored} in the end"
        if any(purge.qid == post.qid and purge.ended < post.began for purge in self.purges):
            yield f"purged: {post} went to a queue that was purged before"
        if not post.delayed:
            if post.after is not None and min(position for _, position in post.locations) <= post.after:
                yield f"after: {post} is not above {post.after}"
            for partition in {*post.partitions}:
                own = [position for number, position in post.locations if number == partition]
                if own != sorted(own):
                    yield f"order: {post} is not in its order"

    def _check_key_in_queue(self, posts: list[Sent]) -> Iterator[str]:
        if not posts:
            return
        there = {
            body: [
                (reader.partition, position)
                for reader in self.last
                for position, shown_body in reader.shown.items()
                if shown_body == body
            ]
            for body in posts[0].bodies
        }
        told = {tuple(post.locations) for post in posts if (post.outcome, post.qid) == ("acknowledged", self.queue.qid)}
        if any(len(places) > 1 for places in there.values()):
            yield f"key: {there} are there"
        elif len(told) > 1 or (told and [*told.pop()] != [place for places in there.values() for place in places]):
            yield f"key: {posts} were answered, and {there} are there"


def outcome_of(error: Exception | None) -> Outcome:
    """Returns the outcome that an error tells; ``none`` for errors that refuse the request."""
    if isinstance(error, KeyInUse | StoreBusy):
        return "none"
    if isinstance(error, StoreUnavailable):
        return error.outcome
    assert isinstance(error, QueueyError), error
    return "none"
