"""Reads ahead: keeps calls under way for all partitions that want messages.

It has no loop of its own. Whenever something changes (messages were handed out, an answer came, a partition was
added) :meth:`Fetcher.kick` plans anew and starts a task for each call. An answer counts for a partition only if the
call is still the one that the partition is part of: whoever was revoked or moved meanwhile has left it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Container, Mapping, Sequence
from random import uniform

from qdo.consumer.batches import divide
from qdo.consumer.fetching import PARTITIONS, QUEUES, Ask, Flights, Plan, Want, plan, room_for
from qdo.consumer.settings import ConsumerSettings
from qdo.consumer.shelf import Shelf
from qdo.consumer.tracks import Track
from qdo.partitions import Partition, Queue
from queuey.client import (
    ApiError,
    AsyncClient,
    ClientError,
    Message,
    Page,
    Query,
    QueueNotFound,
    QueueRead,
    TooManyWaiters,
    id_after,
)

log = logging.getLogger("qdo.consumer")

LOOK = 1.0
"""Seconds between looks at a partition for which there is no place in a poll."""
PAUSE, LONGEST_PAUSE = 0.25, 5.0
"""Seconds after a first failure, and at most; the client has tried again by itself before it reports one."""
CROWDED = 5.0
"""Seconds without polls when the service had no place for one; partitions are looked at meanwhile."""
SPARE_POLLS = 3
"""Polls beside those that are needed when all partitions wait together."""


class Flight:
    """A call that is under way.

    Attributes:
        ask: What it asks.
        tracks: By queue and number those that it was made for.
        left: How many of them still want its answer.
        end: When it will have waited; None: it does not wait.
        task: Carries it out.
    """

    task: asyncio.Task[None]

    def __init__(self, ask: Ask, tracks: dict[Queue, dict[int, Track]], end: float | None) -> None:
        self.ask = ask
        self.tracks = tracks
        self.left = len(ask.wants)
        self.end = end

    @property
    def expected(self) -> int:
        """Messages to make room for; a poll may well bring none."""
        return 0 if self.end is not None else self.ask.limit * self.left


class Fetcher:
    """Keeps the shelf filled.

    Args:
        client: To read with.
        shelf: Where messages go.
        settings: How much to read.
        arrived: Called when there is something new on the shelf.
        missing: Called when a queue was found to be gone.
        failed: Called with an error that will not pass by itself.
    """

    def __init__(
        self,
        client: AsyncClient,
        shelf: Shelf,
        settings: ConsumerSettings,
        *,
        arrived: Callable[[], None],
        missing: Callable[[], None],
        failed: Callable[[Exception], None],
    ) -> None:
        self._client = client
        self._shelf = shelf
        self._settings = settings
        self._arrived = arrived
        self._missing = missing
        self._failed = failed
        self._queues: dict[Queue, int] = {}
        self._count = 0
        self._free: dict[Partition, Track] = {}
        self._flights: set[Flight] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._troubled: set[str] = set()
        self._crowded_until = 0.0
        self._closed = False

    @property
    def _loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    def add(self, track: Track) -> None:
        """Begins to read a partition; ``kick`` follows."""
        self._free[track.partition] = track
        self._queues[track.partition.queue] = self._queues.get(track.partition.queue, 0) + 1
        self._count += 1

    def drop(self, track: Track) -> None:
        """Reads a partition no more."""
        self.leave(track)
        if self._free.pop(track.partition, None) is not track:
            return
        queue = track.partition.queue
        self._count -= 1
        self._queues[queue] -= 1
        if not self._queues[queue]:
            del self._queues[queue]

    def leave(self, track: Track) -> None:
        """Takes a partition out of the call that it is part of; a call that nobody wants any more is broken off."""
        flight = track.flight
        if not isinstance(flight, Flight):
            return
        track.flight = None
        self._free[track.partition] = track
        flight.left -= 1
        if not flight.left:
            self._flights.discard(flight)
            flight.task.cancel()

    def kick(self) -> None:
        """Starts the calls that are to be made now."""
        if self._closed:
            return
        now = self._loop.time()
        wants, instants = self._wants(now)
        if wants:
            found = self._plan(wants, now)
            for ask in found.asks:
                self._start(ask, now)
            if found.look_again is not None:
                instants.append(found.look_again)
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(min(instants), self.kick) if instants else None

    async def close(self) -> None:
        """Breaks off whatever is under way."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _wants(self, now: float) -> tuple[list[Want], list[float]]:
        """Returns which partitions could be read, and when the others will have rested."""
        wants = []
        rests = []
        for partition, track in self._free.items():
            if track.since is None or not track.live:
                continue
            if track.rest_until > now:
                rests.append(track.rest_until)
                continue
            wants.append(Want(partition, track.since, track.count, track.more))
        return wants, rests

    def _plan(self, wants: list[Want], now: float) -> Plan:
        room = room_for(
            self._shelf.count + sum(flight.expected for flight in self._flights),
            self._shelf.size,
            self._count,
            prefetch_messages=self._settings.prefetch_messages,
            prefetch_bytes=self._settings.prefetch_bytes,
        )
        polls = [flight.end for flight in self._flights if flight.end is not None]
        most_polls = SPARE_POLLS + self._count // PARTITIONS + len(self._queues) // QUEUES
        if now < self._crowded_until:
            most_polls = 0
        flights = Flights(len(self._flights) - len(polls), polls, most_polls)
        return plan(wants, room, flights, now, page=self._settings.page, wait=self._settings.wait)

    def _start(self, ask: Ask, now: float) -> None:
        tracks: dict[Queue, dict[int, Track]] = {}
        for want in sorted(ask.wants):
            track = self._free.pop(want.partition)
            tracks.setdefault(want.partition.queue, {})[want.partition.number] = track
        flight = Flight(ask, tracks, now + ask.wait if ask.wait else None)
        for group in tracks.values():
            for track in group.values():
                track.flight = flight
        self._flights.add(flight)
        flight.task = self._loop.create_task(self._fly(flight))
        self._tasks.add(flight.task)
        flight.task.add_done_callback(self._tasks.discard)

    async def _fly(self, flight: Flight) -> None:
        try:
            reads = await self._client.read_queues(_queries(flight), wait=flight.ask.wait)
            self._flights.discard(flight)
            self._take(flight, reads)
            self._restored("")
        except asyncio.CancelledError:
            raise
        except TooManyWaiters:
            self._look_instead(flight)
        except Exception as error:  # noqa: BLE001 - whoever polls gets what will not pass by itself
            self._rest_all(flight, error)
        finally:
            self._flights.discard(flight)
        self.kick()

    def _take(self, flight: Flight, reads: tuple[QueueRead, ...]) -> None:
        """Takes an answer, queue by queue."""
        before = self._shelf.count
        for (queue, tracks), read in zip(flight.tracks.items(), reads, strict=True):
            here = {number: track for number, track in tracks.items() if track.flight is flight}
            if read.page is not None:
                self._restored(queue.name)
                self._take_page(flight, here, read.page)
            elif read.error is not None:
                self._trouble(queue.name, read.error)
                if isinstance(read.error, QueueNotFound):
                    self._missing()
                self._rest(here, read.error)
        if self._shelf.count != before:
            self._arrived()

    def _take_page(self, flight: Flight, tracks: dict[int, Track], page: Page) -> None:
        given = {}
        for number, messages in divide(page.messages):
            given[number] = messages
            if number in tracks:
                self._shelf.put(tracks[number], messages)
        rich = _rich(page, given, flight)
        rest_until = self._loop.time() + LOOK
        for number, track in tracks.items():
            at = page.next.get(number)
            if at is not None:
                track.since = at
            elif number in given:
                track.since = id_after(given[number][-1].id)
            looked = track.more is False and flight.end is None
            track.more = number in rich
            track.failures = 0
            if looked and not track.more and number not in given:
                track.rest_until = rest_until
            self._release(track)

    def _look_instead(self, flight: Flight) -> None:
        """Takes note that the service found nothing and has no place to wait; partitions are looked at for a time."""
        now = self._loop.time()
        jitter = uniform(0.5, 1.0)  # noqa: S311 - so that consumers that came together come back apart
        self._crowded_until = now + CROWDED * jitter
        for tracks in flight.tracks.values():
            for track in tracks.values():
                if track.flight is flight:
                    track.more = False
                    track.rest_until = now + LOOK * jitter
                    self._release(track)

    def _rest_all(self, flight: Flight, error: Exception) -> None:
        """Lets everybody rest after a call that failed."""
        self._trouble("", error)
        if not (isinstance(error, ClientError) and error.temporary):
            self._failed(error)
        for tracks in flight.tracks.values():
            self._rest({number: track for number, track in tracks.items() if track.flight is flight}, error)

    def _rest(self, tracks: dict[int, Track], error: Exception) -> None:
        asked = min(error.retry_after or 0.0, LONGEST_PAUSE) if isinstance(error, ApiError) else 0.0
        now = self._loop.time()
        jitter = uniform(0.5, 1.0)  # noqa: S311 - so that consumers that failed together come back apart
        for track in tracks.values():
            pause = min(LONGEST_PAUSE, PAUSE * 2.0 ** min(track.failures, 10))
            track.rest_until = now + asked + pause * jitter
            track.failures += 1
            self._release(track)

    def _release(self, track: Track) -> None:
        track.flight = None
        self._free[track.partition] = track

    def _trouble(self, name: str, error: Exception) -> None:
        """Says once that reads of a queue (without a name: all) fail."""
        if name not in self._troubled:
            self._troubled.add(name)
            log.warning("reads of %s fail, trying on: %s", name or "the service", error)

    def _restored(self, name: str) -> None:
        if name in self._troubled:
            self._troubled.discard(name)
            log.info("reads of %s work again", name or "the service")


def _queries(flight: Flight) -> list[Query]:
    since = {want.partition: want.since for want in flight.ask.wants}
    return [
        Query(
            queue=queue.name,
            partitions=list(tracks),
            limit=flight.ask.limit,
            since={number: since[Partition(queue, number)] for number in tracks},
        )
        for queue, tracks in flight.tracks.items()
    ]


def _rich(page: Page, given: Mapping[int, Sequence[Message]], flight: Flight) -> Container[int]:
    """Returns the partitions of which there certainly is more.

    The page says so for all together. Those that reached the limit are; if none did, those were cut by bytes that
    have any; a page without any may say so as well.
    """
    if not page.more:
        return ()
    full = {number for number, messages in given.items() if len(messages) >= flight.ask.limit}
    return full or given or page.next
