"""Histories without a broken promise, made up by a small model of a service."""

from __future__ import annotations

import random

from queuey import ids
from queuey.ids import Position
from tests.faults.checking.records import Event, Outcome, Post, Read, Sent, Shown
from tests.harness.history import Fault

QUEUE = "orders"
WEBS = ("web-1", "web-2")
PARTITIONS = (1, 2)
DELAY = 1.5
"""Seconds that reads stay behind."""
PAGE = 3


class Service:
    """Keeps messages in memory, and keeps its promises.

    Args:
        seed: Of all chance.
    """

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.time = 1000.0
        self.events: list[Event] = []
        self._number = 0
        self._messages: dict[tuple[int, Position], str] = {}
        self._cursors: dict[str, dict[int, str]] = {}
        self._last: str | None = None

    def _ticks(self, time: float) -> int:
        return ids.EPOCH_TICKS + round(time * ids.TICKS_PER_SECOND)

    def _web(self) -> str:
        return self.rng.choice(WEBS)

    def post(self, outcome: Outcome, size: int = 1, web: str | None = None) -> None:
        """Posts a batch, to any of the web processes unless one is named, and stores it if it should."""
        sent, names = [], []
        stored = outcome == "acknowledged" or (outcome == "unknown" and self.rng.random() < 0.5)
        start, self.time = self.time, self.time + 0.01
        for n in range(size):
            delay = self.rng.choice((0.0, 0.0, 0.0, 0.5))
            one = Sent(f"m{self._number}.{n}", self.rng.choice(PARTITIONS), delay)
            place = (self._ticks(self.time + delay) + n, ids.LOW_MIN)
            sent.append(one)
            names.append(ids.to_hex(place))
            if stored:
                self._messages[one.partition, place] = one.body
        self._number += 1
        self.time += 0.01
        good = outcome == "acknowledged"
        post = Post(
            start=start,
            end=self.time,
            web=web or self._web(),
            writer="w",
            queue=QUEUE,
            sent=tuple(sent),
            status=201 if good else self.rng.choice((503, 0)) if outcome == "unknown" else 503,
            outcomes=(outcome,) * size,
            ids=tuple(names) if good else (),
            after=self._last,
            retry_after=not good,
        )
        self.events.append(post)
        prompt = [name for one, name in zip(sent, names, strict=True) if not one.delay]
        self._last = max(prompt, key=ids.parse_position) if good and prompt else self._last

    def read(self, reader: str, *, final: int = 0, web: str | None = None) -> bool:
        """Reads a page, from any of the web processes unless one is named; tells whether there was anything on it."""
        since = self._cursors.get(reader, {})
        horizon = self._ticks(self.time - DELAY), ids.LOW_MIN
        shown, following = [], {}
        for number in PARTITIONS:
            lower = ids.parse_position(since[number]) if number in since else ids.FIRST
            found = sorted(place for part, place in self._messages if part == number and lower <= place < horizon)
            page = found[:PAGE]
            shown += [Shown(number, ids.to_hex(place), self._messages[number, place]) for place in page]
            following[number] = ids.to_hex(ids.following(page[-1]) if len(found) > PAGE else max(lower, horizon))
        self.events.append(
            Read(
                start=self.time,
                end=self.time + 0.01,
                web=web or self._web(),
                reader=reader,
                queue=QUEUE,
                partitions=PARTITIONS,
                status=200,
                since=since,
                horizon=ids.to_hex(horizon),
                shown=tuple(shown),
                next=following,
                final=final,
            )
        )
        self.time += 0.01
        self._cursors[reader] = following
        return bool(shown)

    def serve(self) -> None:
        """Posts to and reads from each web process, as all must serve while there is no fault."""
        for web in WEBS:
            self.post("acknowledged", web=web)
            self.read("r1", web=web)


def good_records(seed: int, steps: int = 60) -> list[Event]:
    """Makes up records of a history that breaks no rule and has every kind of record."""
    service = Service(seed)
    service.serve()
    for _ in range(steps):
        service.time += service.rng.random() * 0.2
        if service.rng.random() < 0.4:
            service.read(service.rng.choice(("r1", "r2")))
        else:
            outcome: Outcome = service.rng.choice(("acknowledged", "acknowledged", "none", "unknown"))
            service.post(outcome, service.rng.choice((1, 1, 3)))
    service.events.append(Fault(start=service.time, end=service.time + 1, target="web-1", kind="pause"))
    service.time += 20
    service.serve()
    for _ in range(20):
        service.post("acknowledged")
        service.read("r1")
    service.post("unknown")
    service.time += 20
    for final in (1, 2, 3):
        while service.read(f"final-{final}", final=final):
            pass
    for reader in ("r1", "r2"):
        while service.read(reader):
            pass
    return service.events
