"""Processes fire schedules in the background: one fires each, another takes over, and idle ones query little."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import pytest

from queuey.app.service import Service
from queuey.model import ids
from queuey.model.errors import StoreUnavailable
from queuey.model.messages import Queue, RecordDue
from queuey.runtime.due_work import DueTiming
from queuey.schedules.schedule_states import KIND
from queuey.schedules.schedules import ScheduleUseCases
from queuey.storage import Catalogue, KeyedPosts, Ledger, Records, Store, bridge
from tests.backends import APP, Clock
from tests.contract.samples import eventually, make_queue
from tests.contract.schedules.processes import bodies, plan, seconds
from tests.interposed_store import InterposedStore

FAST_TIMING = DueTiming(search=0.05, overdue=20.0, max_pause=0.05)
COUNTED_METHODS: tuple[Callable[..., Any], ...] = (
    *(Records.record, Ledger.ids_ahead, Catalogue.queue, Records.set_record, Records.due_records),
    KeyedPosts.append_once,
)


class Runner:
    """A process that fires schedules in the background.

    Attributes:
        asked: Number of calls of each method of the store.
        searches: Number of searches for due schedules that the store has answered.
    """

    def __init__(self, store: Store) -> None:
        self.between = InterposedStore(store)
        self.asked: Counter[str] = Counter()
        for method in COUNTED_METHODS:
            self.between.before(method, partial(self.asked.update, [method.__name__]))
        self.searches = 0
        real_search = self.between.method(Records.due_records)

        async def search(*args: Any, **kwargs: Any) -> list[RecordDue]:  # noqa: ANN401 - what the method takes
            self.asked["due_records"] += 1
            found: list[RecordDue] = await real_search(*args, **kwargs)
            self.searches += 1
            return found

        self.between.instead(Records.due_records, search)
        self._stopping = threading.Event()
        service = Service(self.between.store, stopping=self._stopping)
        self.core = service.core
        self.schedules = ScheduleUseCases(
            self.between.store, service.messages, service.core, self._stopping, timing=FAST_TIMING
        )

    def put(self, name: str, queue: Queue, clock: Clock) -> int:
        anchor = int(seconds(clock))
        new_plan = plan(queue, name, anchor=anchor)
        return self.core.run(self.schedules.put(APP, name, lambda _before, _now: new_plan, bool))[0].next[0]

    def stop(self) -> None:
        self._stopping.set()
        self.schedules.start_background_work()

    def wait_for_searches(self, most: int) -> bool:
        """Waits until it has searched that many more times; returns whether it has."""
        before = self.searches
        return eventually(lambda: self.searches >= before + most)


Start = Callable[[], Runner]


@contextmanager
def _running(store: Store) -> Iterator[Runner]:
    runner = Runner(store)
    runner.schedules.start_background_work()
    try:
        yield runner
    finally:
        runner.stop()


@pytest.fixture
def start(open_store: Callable[[], Store]) -> Iterator[Start]:
    with ExitStack() as running:
        yield lambda: running.enter_context(_running(open_store()))


@pytest.fixture
def queue(store: Store, clock: Clock) -> Queue:
    """Makes a queue, with the clock at a whole second."""
    clock.ticks -= clock.ticks % 10_000_000
    return make_queue(store, "q")


def test_fired_by_itself(store: Store, queue: Queue, clock: Clock, start: Start) -> None:
    """Due schedules are fired; others are not, however often they are searched."""
    runner = start()
    names = [f"s{number}" for number in range(10)]
    for name in names:
        runner.put(name, queue, clock)
    assert runner.wait_for_searches(2)
    assert bodies(store, queue) == {}
    for ticks in (1, 2):
        clock.advance(60)
        assert eventually(lambda: bodies(store, queue) == dict.fromkeys(names, ticks))  # noqa: B023 - at once
    assert runner.wait_for_searches(3)
    assert bodies(store, queue) == dict.fromkeys(names, 2)


def test_one_process_fires_a_schedule(store: Store, queue: Queue, clock: Clock, start: Start) -> None:
    """A schedule stays with the process that made it: others search for overdue ones, and do not read it."""
    other = start()
    owner = start()
    assert other.wait_for_searches(2)
    first = owner.put("s", queue, clock)
    for ticks in range(1, 6):
        clock.advance(60)
        assert eventually(lambda: bodies(store, queue) == {"s": ticks})  # noqa: B023 - at once
        # Otherwise it would seem overdue after the next advance, and the other process would read it.
        postponed = ids.seconds_to_ticks(first + 60 * ticks)
        assert eventually(lambda: not bridge.run(store.records.due_records(KIND, postponed - 1)))  # noqa: B023 - at once
    assert other.wait_for_searches(3)
    assert set(other.asked) == {"ids_ahead", "due_records"}


def test_taken_over(store: Store, queue: Queue, clock: Clock, start: Start) -> None:
    """When the process that made a schedule has ended, another one fires overdue ticks, and continues."""
    other = start()
    owner = start()
    assert other.wait_for_searches(2)
    owner.put("s", queue, clock)
    owner.stop()
    clock.advance(60)
    assert other.wait_for_searches(3)
    assert bodies(store, queue) == {}
    clock.advance(FAST_TIMING.overdue)
    assert eventually(lambda: bodies(store, queue) == {"s": 1})
    clock.advance(60 - FAST_TIMING.overdue)
    assert eventually(lambda: bodies(store, queue) == {"s": 2})


@pytest.mark.slow_on("cassandra", "simulated")
def test_goes_on_after_failures(store: Store, queue: Queue, clock: Clock, start: Start) -> None:
    """A store that fails for a while, at any call, delays a tick; a defect does not end the process's work."""
    runner = start()
    runner.put("s", queue, clock)
    for ticks, method in enumerate(COUNTED_METHODS, 1):
        failures: list[Exception] = [StoreUnavailable("away"), ValueError("a defect")]

        runner.between.before(method, partial(_raise_next, failures))
        clock.advance(60)
        assert eventually(lambda: bodies(store, queue) == {"s": ticks}), (method, failures)  # noqa: B023 - at once
        assert eventually(lambda: not failures), method  # noqa: B023 - at once
    assert bodies(store, queue) == {"s": len(COUNTED_METHODS)}


def test_what_an_idle_process_asks(store: Store, clock: Clock, open_store: Callable[[], Store], start: Start) -> None:
    """Without due schedules a search is one call, of four statements on Cassandra."""
    queue = make_queue(store, "q")
    runner = Runner(idle := open_store())
    try:
        for step in range(2):
            runner.schedules.start_background_work()
            assert runner.wait_for_searches(2)
            before = _count_store_requests(idle), runner.asked["due_records"]
            runner.asked.clear()
            assert runner.wait_for_searches(5)
            looks = runner.asked["due_records"]
            sent = _count_store_requests(idle) - before[0]
            assert set(runner.asked) <= {"ids_ahead", "due_records"}
            # A search may be in flight at either end; other statements are the clock check's.
            assert sent <= 4 * (looks + 2) + _max_other_requests(idle)
            if not step:
                maker = start()
                for number in range(100):
                    maker.put(f"s{number}", queue, clock)
    finally:
        runner.stop()


def _raise_next(left: list[Exception]) -> None:
    if left:
        raise left.pop()


def _count_store_requests(store: Store) -> float:
    return bridge.run(store.statistics()).get("store_requests_total", 0.0)


def _max_other_requests(store: Store) -> int:
    return 100 if store.name == "cassandra" else 0
