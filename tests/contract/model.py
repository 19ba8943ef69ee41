"""A naive model of a store: dictionaries, sorted at every read. It judges stores and does not replace one."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field, replace

from queuey.model import ids
from queuey.model.ids import Position
from queuey.model.messages import KEPT_SECONDS, Meta, Page, Slice, bytes_of
from tests.backends import Clock

SLACK = ids.TICKS_PER_SECOND // 1000
"""Ticks that a store may add to an id's time to make it unique."""


@dataclass(frozen=True)
class Stored:
    """A message.

    Attributes:
        ends: The earliest and the latest tick at which its TTL may be over; 0: it was over once.
        rows: The earliest and the latest tick at which its row may go; 0: it may have gone once.
        minted: Its id was made by the store; G1 is about those.
        gone: Seconds of the world's clock from which a store that counts lifetimes by it may have dropped the message.
    """

    body: str | bytes
    meta: Meta
    ends: tuple[int, int]
    rows: tuple[int, float]
    minted: bool
    gone: float = math.inf

    def must_be_shown(self, now: int, *, kept: bool = False) -> bool:
        """Returns whether a read may not leave it out. Near its end it may be shown or hidden."""
        return now < (self.rows if kept else self.ends)[0] and time.monotonic() < self.gone

    def must_be_hidden(self, now: int, *, kept: bool = False) -> bool:
        return now >= (self.rows if kept else self.ends)[1]


@dataclass
class Partition:
    messages: dict[Position, Stored] = field(default_factory=dict)
    newest: Position = ids.FIRST
    """The highest id minted in it without a delay."""

    def between(self, lower: Position, upper: Position) -> list[tuple[Position, Stored]]:
        """Returns the messages in ``[lower, upper)``, also dead ones, in order."""
        return sorted((place, one) for place, one in self.messages.items() if lower <= place < upper)


@dataclass
class ModelQueue:
    partitions: int = 1
    ttl: int | None = None
    read_delay: float = 0.0
    parts: dict[int, Partition] = field(default_factory=dict)
    groups: dict[str, dict[int, Position]] = field(default_factory=dict)

    def part(self, number: int) -> Partition:
        return self.parts.setdefault(number, Partition())


class Model:
    """What the contract promises, checked against what a store does.

    Attributes:
        passed: The highest horizon that any reader was told; no id may be minted below it.
        one_order: Ids ascend over all partitions, in the order in which they are given out.
        newest: The highest id minted without delay.
        latest: The highest time of the clock so far.
        began: When, by the world's clock, the call began that comes next.
    """

    def __init__(self, clock: Clock, *, one_order: bool = True) -> None:
        self.clock = clock
        self.one_order = one_order
        self.queues: dict[str, ModelQueue] = {}
        self.passed = 0
        self.newest: Position = ids.FIRST
        self.latest = clock.ticks
        self.began = time.monotonic()

    def _gone_at(self, ttl: int) -> float:
        """Returns ``Stored.gone`` of a message that the next call writes; infinity with ``one_order``."""
        return math.inf if self.one_order else self.began + ttl - 1

    def _row_removal_span(self, ends: tuple[int, int], kept: int) -> tuple[int, float]:
        """Returns when the row of a message may go that stays for ``kept`` seconds after its end."""
        span = kept * ids.TICKS_PER_SECOND
        return ends[0] + span, ends[1] + span if self.one_order else math.inf

    def record_append(
        self,
        queue: ModelQueue,
        partition: int,
        place: Position,
        body: str | bytes,
        ttl: int,
        delay: float,
        meta: Meta | None,
        *,
        kept: bool,
    ) -> None:
        """Adds an appended message, and asserts that its id ascends and is above each horizon that was told."""
        messages = queue.part(partition).messages
        assert place not in messages
        assert place >= (self.passed, ids.LOW_MIN), "minted below a horizon"
        if delay:
            assert place[0] >= self.clock.ticks + int(delay * ids.TICKS_PER_SECOND) - 1
        else:
            before = self.newest if self.one_order else queue.part(partition).newest
            assert place > before, "ids do not ascend"
            queue.part(partition).newest = place
            self.newest = max(self.newest, place)
        span = ttl * ids.TICKS_PER_SECOND
        early = self.clock.ticks + (int(delay * ids.TICKS_PER_SECOND) if delay else 0)
        ends = (min(early, place[0]) + span, max(early, place[0]) + span + SLACK)
        rest = KEPT_SECONDS * kept
        rows = self._row_removal_span(ends, rest)
        messages[place] = Stored(body, meta or Meta(), ends, rows, minted=True, gone=self._gone_at(ttl + rest))

    def expire_messages(self) -> None:
        """Marks expired messages: they may be gone for good, even if the clock is set back."""
        now = self.clock.ticks
        self.latest = max(self.latest, now)
        for queue in self.queues.values():
            for part in queue.parts.values():
                for place, message in part.messages.items():
                    if not message.must_be_shown(now):
                        rows = message.rows if message.must_be_shown(now, kept=True) else (0, message.rows[1])
                        part.messages[place] = replace(message, ends=(0, message.ends[1]), rows=rows)

    def put(
        self, queue: ModelQueue, partition: int, place: Position, body: str | bytes, ttl: int, meta: Meta | None
    ) -> None:
        """Adds a message under a given id, or replaces the one there."""
        end = max(self.clock.ticks, place[0]) + ttl * ids.TICKS_PER_SECOND
        rows = self._row_removal_span((end, end), 0)
        queue.part(partition).messages[place] = Stored(
            body, meta or Meta(), (end, end), rows, minted=False, gone=self._gone_at(ttl)
        )

    def judge_horizon(self, queue: ModelQueue, wanted: Slice, horizon: int) -> None:
        now = self.clock.ticks
        if wanted.keeps_read_delay:
            self.passed = max(self.passed, horizon)
        if wanted.keeps_read_delay and queue.read_delay:
            behind = now - int(queue.read_delay * ids.TICKS_PER_SECOND)
            assert horizon <= behind
            assert horizon == behind or horizon > self.newest[0]
            return
        assert horizon > self.newest[0] or self.newest == ids.FIRST
        assert horizon <= max(self.latest, self.newest[0]) + 1
        # Delayed messages elsewhere do not move the horizon of this partition.
        due = [place[0] for place in queue.part(wanted.partition).messages]
        assert not [tick for tick in due if horizon <= tick < now], "a due message is hidden"

    def judge_page(self, queue: ModelQueue, wanted: Slice, page: Page) -> None:
        self.judge_horizon(queue, wanted, page.horizon)
        now = self.clock.ticks
        upper = min(wanted.upper, (page.horizon, ids.LOW_MIN))
        inside = (
            [] if wanted.partition > queue.partitions else queue.part(wanted.partition).between(wanted.lower, upper)
        )
        if wanted.descending:
            inside.reverse()
        shown = [message.position for message in page.messages]
        known = dict(inside)
        for message in page.messages:
            stored = known.get(message.position)
            assert stored is not None, "shows what is not there"
            assert not stored.must_be_hidden(now, kept=wanted.kept), "shows an expired message"
            assert (message.body, message.meta or Meta()) == (stored.body, stored.meta)
            assert stored.ends[0] <= message.expires <= stored.ends[1]
        assert shown == sorted(set(shown), reverse=wanted.descending)
        alive = [place for place, one in inside if one.must_be_shown(now, kept=wanted.kept)]
        self._judge_end(wanted, page, alive, upper)

    def _judge_end(self, part: Slice, page: Page, alive: list[Position], upper: Position) -> None:
        shown = [message.position for message in page.messages]
        size = bytes_of(page.messages)
        full = len(shown) == part.limit or size >= part.max_bytes
        assert len(shown) <= part.limit
        assert bytes_of(page.messages[:-1]) < part.max_bytes
        if full and shown:
            missing = [place for place in alive if (place < shown[-1]) != part.descending and place not in shown]
            missing = [place for place in missing if place != shown[-1]]
        else:
            missing = [place for place in alive if place not in shown]
            assert not page.more
        assert missing == [], "left a message out"
        rest = [place for place in alive if place not in shown]
        assert page.more or not rest
        if part.descending:
            assert page.next is None if not page.more else page.next is not None
            assert not rest or (page.next is not None and page.next >= rest[0])
            return
        assert page.next is not None
        assert page.next >= part.lower
        assert not rest or page.next <= rest[0]
        assert not shown or page.next > shown[-1]
        assert page.next <= max(part.lower, upper)

    def judge_fetch(
        self,
        queue: ModelQueue,
        locations: list[tuple[int, Position]],
        found: list[tuple[int, Position, str | bytes]],
        *,
        kept: bool,
    ) -> None:
        now = self.clock.ticks
        remaining = iter(found)
        following = next(remaining, None)
        for partition, place in locations:
            stored = queue.part(partition).messages.get(place) if partition <= queue.partitions else None
            if (
                stored is not None
                and following == (partition, place, stored.body)
                and not stored.must_be_hidden(now, kept=kept)
            ):
                following = next(remaining, None)
            else:
                assert stored is None or not stored.must_be_shown(now, kept=kept), "left a message out"
        assert following is None, "shows what is not there"

    def counts(self, queue: ModelQueue, partition: int) -> tuple[list[Position], list[Position]]:
        """Returns the positions that a count must include, and all that it may include."""
        now = self.clock.ticks
        everything = queue.part(partition).between(ids.FIRST, (ids.TICKS_MAX + 1, 0))
        return (
            [place for place, one in everything if one.must_be_shown(now)],
            [place for place, one in everything if not one.must_be_hidden(now)],
        )
