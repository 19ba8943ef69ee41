"""The unread count that a page shows which does what ``docs/api-messages.md`` says, on a stream with ``read_marks``."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from queuey.access.queue_access import QueueAccess
from queuey.app.service import App, Service
from queuey.messages import read_marks, streams
from queuey.messages.ranges import OTHER_PARTITIONS
from queuey.messages.read_marks import UnreadCount, make_reader_group
from queuey.model import ids
from queuey.model.ids import FIRST, Position
from queuey.model.messages import OffsetChange
from queuey.storage import Store, bridge
from queuey.web.gateway import Gateway
from tests.contract.samples import new_message
from tests.messages.test_streams import Reader, reading
from tests.replacing import replace_in
from tests.web.caller import Caller
from tests.web.gateway_calls import make_runner, until

OWNER = "app:queuey"


class Page(Reader):
    """A page with the unread count of each of its queues.

    Attributes:
        badges: By queue, the count and whether there are more.
        marks: By queue, the last read mark.
    """

    def __init__(self, path: str, query: str = "", **options: Any) -> None:  # noqa: ANN401 - as Reader takes them
        super().__init__(path, f"read_marks=1&{query}", **options)
        self.badges: dict[str, tuple[int, bool]] = {}
        self.marks: dict[str, dict[int, Position]] = {}
        self._taken = 0

    def badge(self, queue: str = "q") -> tuple[int, bool] | None:
        """Takes the events that have arrived, and returns the count that the page shows."""
        events = self.events[self._taken :]
        self._taken += len(events)
        for event in events:
            if event.data is None:
                continue
            name = event.data.get("queue_name", "q")
            if event.kind == "read":
                self.badges[name] = event.data["unread"], event.data["more"]
                self.marks[name] = {int(n): ids.parse_id(text) for n, text in event.data["read"].items()}
            elif event.kind == "gone":
                self.badges.pop(name, None)
            elif event.kind == "message" and name in self.badges and not event.data.get("early"):
                count, more = self.badges[name]
                place = ids.parse_id(event.data["message_id"])
                is_unread = place > self.marks[name].get(event.data["partition"], FIRST)
                self.badges[name] = count + (is_unread and not more), more
        return self.badges.get(queue)


class World:
    """Queues whose messages come and go, by this process or another one, and a reader's marks in them."""

    def __init__(self, store: Store, app: App, owner: Caller) -> None:
        self.store, self.owner = store, owner
        self.service: Service = app.service

    def access(self, name: str = "q") -> QueueAccess:
        return self.service.queues.access_unchecked(bridge.run(self.service.find("queuey", name)))

    def post(self, count: int, name: str = "q", partition: int = 1) -> list[Position]:
        queue = self.access(name).queue
        items = [new_message("x", partition=partition) for _ in range(count)]
        return bridge.run(self.store.messages.append(queue, items))

    def mark(self, place: Position, name: str = "q", *, elsewhere: bool = False, back: bool = True) -> None:
        """Marks all partitions as read up to a message, with ``elsewhere`` by another process."""
        access = self.access(name)
        if elsewhere:
            changes = [OffsetChange(n, place, forward=not back) for n in range(1, access.queue.partitions + 1)]
            bridge.run(self.store.offsets.set_offsets(access.queue, make_reader_group(OWNER), changes))
        else:
            bridge.run(self.service.unread.mark(access, OWNER, {OTHER_PARTITIONS: ids.following(place)}, back=back))

    def delete(self, *locations: tuple[int, Position], name: str = "q", elsewhere: bool = False) -> None:
        if elsewhere:
            bridge.run(self.store.messages.delete(self.access(name).queue, locations))
        else:
            bridge.run(self.service.messages.delete(self.access(name), locations))

    def count(self, name: str = "q") -> tuple[int, bool]:
        [counted] = bridge.run(self.service.unread.unread([self.access(name)], OWNER))
        assert isinstance(counted, UnreadCount)
        return counted.count, counted.more


@pytest.fixture
def world(store: Store, app: App, owner: Caller) -> World:
    return World(store, app, owner)


@pytest.fixture
def often() -> Iterator[None]:
    """Marks, and counts of unread messages, are read several times a second."""
    with replace_in(read_marks, read_marks.MIN_MARKS_INTERVAL, 0.2):
        yield


REMOVALS: Mapping[str, Callable[[World, list[Position]], object]] = {
    "delete": lambda world, places: world.owner("DELETE", f"q/{ids.to_hex(places[1])}"),
    "read message": lambda world, places: world.delete((1, places[0])),
    "put": lambda world, _: world.owner("PUT", f"q/{ids.to_hex((77, 0))}", "put"),
    "named": lambda world, _: world.owner("PUT", "q/named/stock", "16 pears"),
    "named delete": lambda world, _: world.owner("DELETE", "q/named/stock"),
    "purge": lambda world, _: bridge.run(world.service.queues.purge(world.access())),
}


@pytest.mark.parametrize("path", ["q", "_stream"])
@pytest.mark.parametrize("removal", REMOVALS)
def test_a_removal_by_this_process_is_reported_at_once(
    owner: Caller, app: App, world: World, removal: str, path: str
) -> None:
    """A message that is deleted, replaced or written by id changes the count of every window without a poll."""
    owner.create("q")
    assert owner("PUT", "q/named/stock", "17 pears").status == 200
    places = world.post(5)
    if removal != "put":
        world.mark(places[0], back=False)

    async def work(gateway: Gateway) -> None:
        query = "queues=q" if path == "_stream" else ""
        async with reading(gateway, Page(path, query)) as one, reading(gateway, Page(path, query)) as two:
            assert isinstance(one, Page)
            assert isinstance(two, Page)
            await until(lambda: one.badge() == two.badge() == world.count())
            await asyncio.to_thread(REMOVALS[removal], world, places)
            if removal == "named":
                await until(lambda: len(one.bodies) == len(two.bodies) == 7)
            await until(lambda: one.badge() == two.badge() == world.count())

    with replace_in(read_marks, read_marks.MIN_MARKS_INTERVAL, 1e6):
        make_runner(app, waiters=50)(work)


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 12))])
def test_after_a_rest_each_badge_is_right(store: Store, owner: Caller, app: App, world: World, seed: int) -> None:
    """Whatever this process or another one does to messages and marks, after a rest each window shows the count."""
    rng = random.Random(seed)
    names = [owner.create("a"), owner.create("b", partitions=3)]
    stored: dict[str, list[tuple[int, Position]]] = {"a": [], "b": []}

    def act() -> None:
        name, elsewhere = rng.choice(names), rng.random() < 0.5
        places, queue = stored[name], world.access(name).queue
        last = places[-9:]
        match rng.choice(["post", "post", "many", "mark", "delete", "delete", "purge or recreate"]):
            case "mark" if last:
                world.mark(rng.choice(last)[1], name, elsewhere=elsewhere, back=rng.random() < 0.3)
            case "delete" if last:
                places[-9:] = rng.sample(last, len(last) // 2)
                world.delete(*set(last).difference(places), name=name, elsewhere=elsewhere)
            case "purge or recreate":
                places.clear()
                bridge.run((store.catalogue.purge_queue if elsewhere else store.catalogue.delete_queue)(queue))
                if not elsewhere:
                    owner.create(name, partitions=queue.partitions)
            case how:
                number = rng.randint(1, queue.partitions)
                count = 130 if how == "many" else rng.randint(1, 4)
                places += [(number, place) for place in world.post(count, name, number)]

    async def work(gateway: Gateway) -> None:
        async with (
            reading(gateway, Page("_stream", "queues=a,b&limit=20")) as first,
            reading(gateway, Page("_stream", "queues=a,b&since=now")) as second,
        ):
            windows: list[Any] = [first, second]
            for _ in range(12):
                for _ in range(rng.randint(1, 5)):
                    await asyncio.to_thread(act)
                await until(
                    lambda: all(window.badge(name) == world.count(name) for window in windows for name in names)
                )

    make_runner(app, waiters=50, beat=0.2)(work)


def test_an_event_counts_to_its_position(owner: Caller, app: App, world: World) -> None:
    """Each count is of the messages before the event's id, and of the stream's partitions."""
    owner.create("q", partitions=3)
    stored = {place: number for number in (1, 2, 3) for place in world.post(30, partition=number)}
    world.mark(sorted(stored)[20])

    async def work(gateway: Gateway) -> None:
        for query, numbers in (("limit=7", {1, 2, 3}), ("limit=7&partitions=1,3", {1, 3})):
            async with reading(gateway, Page("q", query)) as page:
                await until(lambda: any(event.kind == "read" for event in page.events))
                event = next(event for event in page.events if event.kind == "read")
                cursor = streams.Cursor.parse(event.id, "q")
                marks = {int(n): ids.parse_id(text) for n, text in event.data["read"].items()}
                counted = [
                    place
                    for place, number in stored.items()
                    if number in numbers and marks[number] < place < cursor.marks.get(("q", number), cursor.base)
                ]
                assert (event.data["unread"], event.data["more"]) == (len(counted), False)
                assert len(counted) < 69

    make_runner(app, waiters=50)(work)
