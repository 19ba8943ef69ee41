"""A storm over the Cassandra store itself: its writer, undo writes, clock check and readers on a simulated cluster.

Processes post, post with keys, set names and read by time, while nodes, networks, clocks and processes fail. Then the
faults end, and when everything has finished, what readers were shown is compared with what posters were told.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, ParamSpec, TypeVar

from queuey.model import ids
from queuey.model.errors import KeyInUse, NameChanged, QueueyError, StoreBusy, StoreUnavailable
from queuey.model.ids import Position
from queuey.model.messages import Location, NewMessage, Page, PostKey, Queue, QueueSpec, Slice
from queuey.model.queue_options import KindOption
from tests.sim.cassandra.cluster import Cluster, Machine, NetworkFaults, Node, open_store
from tests.sim.cassandra.loops import ThreadedCore
from tests.sim.cassandra.pace import PATIENT, Pace
from tests.sim.world import Process, World, begin, raise_error
from tests.waiting import PATIENCE_SECONDS

P = ParamSpec("P")
T = TypeVar("T")
Outcome = Literal["acknowledged", "none", "unknown"]
APPLICATION, QUEUE = "acme", "orders"
PARTITIONS = 2
START = 3.0
"""Seconds without faults at the start, in which the queue is created."""
STORM = 12.0
"""Seconds of faults, at the patient pace."""
CLOCK_ERROR_FRACTION = 0.2
"""Max error of a clock without faults, as a fraction of S. A wall clock that is off by more than 0.3 is not adopted."""
TTLS = (3600, 3600, 3600, 40_000, 900_000)
"""Seconds: of the queue's own class of lifetimes, and of longer ones."""


class Site:
    """A web process with its store. It restarts after a crash.

    Args:
        world: The source of time and chance.
        cluster: The cluster of its store.
        node: The node of the cluster on the same machine, if any.
    """

    def __init__(self, world: World, cluster: Cluster, node: Node | None = None) -> None:
        apart = CLOCK_ERROR_FRACTION * cluster.pace.clocks
        self.process = Process(world, world.rng.uniform(-apart, apart))
        self.machine = Machine(self.process, cluster.pace, node)
        self._cluster = cluster
        self.start()

    def start(self) -> None:
        self.core = ThreadedCore(self.process, 0.001)
        self.store = open_store(self._cluster, self.process, self.machine)

    def crash(self) -> None:
        """Crashes the process and starts it again at once, with a new store."""
        self.process.crash()
        self.start()

    def begin(self, work: Coroutine[Any, Any, object]) -> None:
        begin(self.core, work, raise_error)

    async def call(self, call: Awaitable[T], seconds: float | None = None) -> T:
        """Awaits a call of the store.

        It must end by its deadline. If its process was paused then, or shortly before, it must end within D of the end
        of the pause: by then, a write that it has begun is acknowledged or undone.

        Raises:
            TimeoutError: The call did not end in time.
        """
        loop, delay = asyncio.get_running_loop(), self._cluster.pace.timing.levels["strong"].delay
        async with asyncio.timeout(None) as limit:

            def set_limit() -> None:
                limit.reschedule(max(loop.time(), self.process.paused_until + delay))

            deadline = loop.call_later(seconds or self.store._options.deadline, set_limit)
            try:
                return await call
            finally:
                deadline.cancel()

    async def page(self, queue: Queue, part: Slice) -> Page:
        [page] = await self.call(self.store.messages.read(queue, [part]), PATIENCE_SECONDS)
        return page


@dataclass
class Post:
    """Messages posted together, and the outcome that their poster was told.

    Attributes:
        qid: The qid of the queue's row that they were stored by.
        partitions: The partitions of the messages.
        delayed: Whether any message is delayed.
        site, life: The process that sent them, and its life.
        ended: When their client was answered.
    """

    bodies: list[str]
    began: float
    key: str = ""
    outcome: Outcome = "unknown"
    locations: list[Location] = field(default_factory=list)
    qid: int = 0
    after: Position | None = None
    partitions: list[int] = field(default_factory=list)
    delayed: bool = False
    site: Site | None = None
    life: int = 0
    ended: float = float("inf")


@dataclass
class Purge:
    """A purge that was answered."""

    qid: int
    ended: float


@dataclass
class Naming:
    """A new value of a name. ``body`` is None if the name was cleared."""

    body: str | None
    began: float
    ended: float = float("inf")
    outcome: Outcome = "unknown"


class Reader:
    """Reads a partition by time, page after page.

    Args:
        site: The process that reads.
        partition: The partition to read.
        scale: Factor for all times.
    """

    def __init__(self, site: Site, queue: Queue, partition: int, scale: float = 1.0) -> None:
        self._site = site
        self.every, self.busy = 0.5 * scale, STORM * scale
        self._queue = queue
        self.qid = queue.qid
        self.partition = partition
        self.cursor: Position = ids.FIRST
        self.shown: dict[Position, str] = {}
        self.wrong: list[str] = []

    async def read_on(self) -> None:
        world = self._site.process.world
        calm = world.now + self.busy
        while True:  # bounded: by the end of the history
            await asyncio.sleep(world.random_time(self.every if world.now < calm else 2.0))
            try:
                while await self.read(world.rng.choice((1, 3, 100))):
                    pass
            except StoreUnavailable:
                pass

    async def read(self, limit: int) -> bool:
        """Reads a page. Returns whether there is more."""
        return self.record_page(await self._site.page(self._queue, Slice(self.partition, self.cursor, limit=limit)))

    def record_page(self, page: Page) -> bool:
        """Records a page and moves the cursor. Returns whether there is more.

        A message that is below the cursor or was shown before is a violation.
        """
        for message in page.messages:
            if message.position < self.cursor or message.position in self.shown:
                self.wrong.append(f"order: {message.body!r} was shown below the cursor, or twice")
            self.shown[message.position] = str(message.body)
        assert page.next is not None
        self.cursor = page.next
        return page.more


class MessageStorm:
    """One simulated history.

    Args:
        seed: Seeds all random choices.
        pace: The timing of the stores and of all events.

    Attributes:
        seconds: Duration of the faults; 0: as the pace says.
        shared: Number of nodes on the machines of sites.
        kind: The kind of the queue.
    """

    seconds = 0.0
    shared = 0
    kind: KindOption = "plain"

    def __init__(self, seed: int, pace: Pace = PATIENT) -> None:
        self.world = World(seed)
        self.pace = pace
        rng = self.world.rng
        self.weather = NetworkFaults(
            slow=rng.choice((0.001, 0.01, 0.1)) * pace.scale,
            lost=rng.choice((0.0, 0.02, 0.1)),
            stuck=rng.choice((0.0, 0.1, 0.3)),
            late=rng.choice((0.0, 0.1, 0.3)),
            stalls=rng.choice((0.0, 0.0, 0.05)),
        )
        self.cluster = Cluster(self.world, NetworkFaults(), pace)
        self._shared = iter(self.cluster.nodes[: self.shared])
        self.sites = [self._new_site() for _ in range(rng.randint(1, 3))]
        self.posts: list[Post] = []
        self.purges: list[Purge] = []
        self.namings: list[Naming] = []
        self.readers: list[Reader] = []
        self.last: Sequence[Reader] = ()
        self._numbers = iter(range(1_000_000))

    def run(self) -> list[str]:
        world, rng, storm = self.world, self.world.rng, self.seconds or STORM * self.pace.scale
        self.sites[0].begin(self._create_queue())
        world.run(world.now + START)
        self.cluster.network_faults = self.weather
        for site in self.sites:
            self.start_readers(site)
        for work, times in self.planned_events().items():
            for _ in range(times):
                world.after(rng.random() * storm, work)
        world.run(world.now + storm)
        self.cluster.network_faults = NetworkFaults()
        for site in self.sites:
            site.machine.set_clock()
        world.run(world.now + self.pace.calm)
        self.sites[0].begin(self._read_all())
        world.run(world.now + START)
        world.end()
        return list(self.violations())

    def planned_events(self) -> dict[Callable[[], None], int]:
        """Returns the events that happen at random times during the faults, and how often each does."""
        rng = self.world.rng
        begin = {
            self._post: rng.randint(4, 20),
            self._post_under_key: rng.randint(0, 6),
            self._write_name: rng.randint(0, 6),
        }
        return begin | {self._crash_and_restart: rng.choice((0, 1, 2)), self._cause_fault: rng.choice((0, 2, 5))}

    def _new_site(self) -> Site:
        return Site(self.world, self.cluster, next(self._shared, None))

    async def _create_queue(self) -> None:
        site = self.sites[0]
        await site.call(site.store.applications.create_application(APPLICATION))
        spec = QueueSpec(partitions=PARTITIONS, ttl=3600, kind=self.kind)
        self.queue, _ = await site.call(site.store.catalogue.create_queue(APPLICATION, QUEUE, spec))

    def pick_site(self) -> Site:
        return self.world.rng.choice(self.sites)

    def start_readers(self, site: Site) -> None:
        for partition in range(1, PARTITIONS + 1):
            reader = Reader(site, self.queue, partition, self.pace.scale)
            self.readers.append(reader)
            site.begin(reader.read_on())

    async def _read_all(self) -> None:
        """Finishes any half-done change of the name by looking at it, then reads everything with new readers."""
        site = self.sites[0]
        await site.call(site.store.names.find_named(self.queue, "name"))
        await self._read_to_the_end([Reader(site, self.queue, number + 1) for number in range(PARTITIONS)])

    async def _read_to_the_end(self, readers: Sequence[Reader]) -> None:
        self.last = readers
        for reader in readers:
            while await reader.read(100):
                pass
        self._read_at = self.world.now

    # Events

    def _crash_and_restart(self) -> None:
        """Crashes a site, which restarts at once, and starts new readers there."""
        site = self.pick_site()
        site.crash()
        self.start_readers(site)

    def _cause_fault(self) -> None:
        rng, site, scale = self.world.rng, self.pick_site(), self.pace.scale
        kind = rng.choice(("pause", "still", "clock", "node", "node"))
        seconds = rng.choice((0.5, 2.0, 4.0, 7.0)) * scale
        if kind == "pause":
            site.process.pause(seconds)
        elif kind == "still":
            site.machine.stand_still(seconds)
        elif kind == "clock":
            site.machine.set_clock(rng.choice((-6.0, -0.5, -0.15, 0.15, 0.5, 6.0)) * self.pace.clocks)
        else:
            rng.choice(self.cluster.nodes).away_until = self.world.now + seconds

    def _make_items(self, count: int, text: str = "") -> list[NewMessage]:
        rng = self.world.rng
        partition = rng.randint(1, PARTITIONS)
        ttl, delay = rng.choice(TTLS), rng.choice((0.0, 0.0, 0.0, 0.5, 4.0)) * self.pace.scale
        return [
            NewMessage(
                f"{text}{next(self._numbers)}", rng.choice((partition, rng.randint(1, PARTITIONS))), ttl, None, delay
            )
            for _ in range(count)
        ]

    def _post(self) -> None:
        site, items = self.pick_site(), self._make_items(self.world.rng.choice((1, 1, 2, 5)))
        post = Post([str(item.body) for item in items], self.world.now, qid=self.queue.qid)
        post.partitions, post.delayed = [item.partition for item in items], any(item.delay for item in items)
        self.posts.append(post)

        async def work() -> None:
            positions = await site.call(site.store.messages.append(self.queue, items))
            post.locations = [(item.partition, position) for item, position in zip(items, positions, strict=True)]
            post.outcome = "acknowledged"

        site.begin(_record_outcome(post, work))

    def _post_under_key(self) -> None:
        site, key = self.pick_site(), self.world.rng.choice("ab")
        partition = ord(key) % PARTITIONS + 1
        items = [NewMessage(f"key {key}", partition, 3600)]
        post = Post([f"key {key}"], self.world.now, key, qid=self.queue.qid)
        self.posts.append(post)

        async def work() -> None:
            for _ in range(3):
                try:
                    post_key = PostKey(key, b"", 3600)
                    result = await site.call(site.store.keyed_posts.append_once(self.queue, items, post_key))
                except KeyInUse:
                    await asyncio.sleep(self.pace.scale)
                    continue
                post.locations = result.locations
                post.outcome = "acknowledged"
                return

        site.begin(_record_outcome(post, work))

    def _write_name(self) -> None:
        """Sets or clears the name, with up to three attempts; records each as a naming."""
        site = self.pick_site()
        store = site.store
        body = None if self.world.rng.random() < 0.2 else f"name {next(self._numbers)}"
        item = None if body is None else NewMessage(body, 1, 3600)

        async def work() -> None:
            for _ in range(3):
                seen = await site.call(store.names.find_named(self.queue, "name"))
                if seen is not None and seen.replaced is not None:
                    await site.call(store.names.settle_named(self.queue, "name", seen))
                    continue
                if seen is not None and seen.busy:
                    await asyncio.sleep(seen.busy)
                    continue
                naming = Naming(body, self.world.now)
                self.namings.append(naming)
                try:
                    named = await site.call(store.names.write_named(self.queue, "name", item, b"", seen))
                except NameChanged:
                    naming.outcome = "none"
                    continue
                except StoreUnavailable as error:
                    naming.outcome = "none" if error.outcome == "none" else "unknown"
                    return
                naming.outcome, naming.ended = "acknowledged", self.world.now
                await site.call(store.names.settle_named(self.queue, "name", named))
                return

        site.begin(_record_outcome(Post([], 0.0), work))

    # Checks

    def violations(self) -> Iterator[str]:
        if not hasattr(self, "_read_at"):
            yield "end: nothing could be read when all was calm"
            return
        yield from self.cluster.wrong
        for reader in [*self.readers, *self.last]:
            yield from reader.wrong
        for post in self.posts:
            if not post.key:
                yield from self._check_post(post)
        for key in sorted({post.key for post in self.posts if post.key}):
            yield from self._check_key([post for post in self.posts if post.key == key])
        yield from self._check_name()
        if pending := sum(site.store._writer.pending for site in self.sites):
            yield f"end: {pending} messages still wait"

    def _check_post(self, post: Post) -> Iterator[str]:
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

    def _check_acknowledged(self, post: Post, stored: Counter[str]) -> Iterator[str]:
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

    def _check_key(self, posts: list[Post]) -> Iterator[str]:
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

    def _check_name(self) -> Iterator[str]:
        stored = [body for reader in self.last for body in reader.shown.values() if body.startswith("name ")]
        if len(stored) > 1:
            yield f"name: {stored} are there"
        value = stored[0] if stored else None
        acknowledged = [one for one in self.namings if one.outcome == "acknowledged"]
        latest = max((one.began for one in acknowledged), default=0.0)
        possible = {one.body for one in self.namings if one.outcome != "none" and one.ended > latest}
        if value not in possible and (acknowledged or value is not None):
            yield f"name: {value} is there, after {self.namings}"


async def _record_outcome(post: Post, work: Callable[[], Awaitable[None]]) -> None:
    """Does the work of a post. An error is not raised but recorded as its outcome."""
    try:
        await work()
    except (KeyInUse, StoreBusy):
        post.outcome = "none"
    except StoreUnavailable as error:
        post.outcome = error.outcome
    except QueueyError:
        post.outcome = "none"
