"""Each tick of a schedule is published once, whichever processes fire it and wherever they stop."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest
from msgspec.structs import replace

from queuey.model import ids
from queuey.model.errors import (
    KeyInUse,
    NotAllowed,
    RecordChanged,
    ScheduleNotFound,
    StoreUnavailable,
    TooManySchedules,
)
from queuey.model.messages import QueueSpec
from queuey.schedules import schedule_states
from queuey.schedules import schedules as use_cases
from queuey.schedules.schedule_states import Missed
from queuey.storage import Catalogue, KeyedPosts, Records, Store, StoreClock, bridge
from tests.backends import APP, Clock
from tests.contract.samples import call_concurrently, make_queue
from tests.contract.schedules.processes import Process, bodies, pause_plan, plan, seconds
from tests.interposed_store import Killed
from tests.replacing import replace_in

S = 1.0
"""Max difference of clocks, in seconds."""
CALLS = 12
"""More calls of the store than a tick makes."""


@pytest.fixture
def process(store: Store, clock: Clock) -> Process:
    return Process(store, clock)


def begin(process: Process, name: str = "s", *, every: int = 60, missed: Missed = "skip") -> int:
    """Makes a queue and a schedule for every minute; returns the first instant, 20 s ahead. Rounds the clock down."""
    process.clock.ticks -= process.clock.ticks % 10_000_000
    anchor = int(seconds(process.clock)) - 40
    queue = make_queue(process.between.store, "q")
    report = process.put(name, plan(queue, every=every, anchor=anchor, missed=missed))
    assert report.next[0] == anchor + every
    return anchor + every


def test_a_tick(process: Process, store: Store) -> None:
    """Nothing is posted before a tick is due; then one message is, and the schedule shows it."""
    first = begin(process)
    assert not process.step("s")
    process.clock.advance(19.5)
    assert not process.step("s")
    process.clock.advance(0.5)
    process.settle("s")
    queue = bridge.run(store.catalogue.queue(APP, "q"))
    assert bodies(store, queue) == {"tick": 1}
    report = process.report("s")
    assert report.next[:2] == [first + 60, first + 120]
    assert report.firing is None
    assert report.last is not None
    assert (report.last.state, report.last.instant) == ("published", first)
    [message] = bridge.run(
        store.messages.fetch(queue, [(report.last.partition, ids.parse_position(report.last.message_id))])
    )
    assert message.body == "tick"
    process.clock.advance(59)
    assert not process.step("s")
    process.clock.advance(1)
    process.settle("s")
    assert bodies(store, queue) == {"tick": 2}


@pytest.mark.slow_on("cassandra", "simulated")
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("number", range(1, CALLS + 1))
def test_killed_at_every_call(process: Process, other: Store, number: int, *, after: bool) -> None:
    """If a process stops before or after any call of the store, another one finishes the tick; it is published once."""
    begin(process)
    process.clock.advance(20)
    process.kill_at(number, after=after)
    with suppress(Killed):
        process.settle("s")
    finisher = Process(other, process.clock)
    finisher.settle("s")
    assert bodies(other, bridge.run(other.catalogue.queue(APP, "q"))) == {"tick": 1}
    report = finisher.report("s")
    assert report.last is not None
    assert report.last.state == "published"
    assert report.firing is None


def test_all_calls_were_tried(process: Process) -> None:
    """The kills above include the last call that a tick makes."""
    begin(process)
    process.clock.advance(20)
    calls = process.kill_at(CALLS + 1, after=False)
    process.step("s")
    assert 5 < len(calls) <= CALLS


@pytest.mark.parametrize("number", range(4, CALLS + 1, 2))
def test_both_go_on(process: Process, other: Store, number: int) -> None:
    """If a paused process continues after another one has finished its tick, the tick is still published once."""
    begin(process)
    process.clock.advance(20)
    process.kill_at(number, after=False)
    with suppress(Killed):
        process.settle("s")
    record = bridge.run(process.between.real.records.record(schedule_states.KIND, APP, "s"))
    assert record is not None
    Process(other, process.clock).settle("s")
    for method in (Records.record, StoreClock.now_ticks, Catalogue.queue, Records.set_record, KeyedPosts.append_once):
        process.between.restore(method)
    with suppress(RecordChanged, KeyInUse):
        process.service.core.run(process.firing.take_step(record))
    process.settle("s")
    assert bodies(other, bridge.run(other.catalogue.queue(APP, "q"))) == {"tick": 1}


@pytest.mark.parametrize("ahead", [S, -S, pytest.param(0.0, marks=pytest.mark.slow)])
def test_clocks_that_differ(open_with_clock: Callable[[Clock], Store], ahead: float) -> None:
    """Processes whose clocks differ fire each tick once and skip none, in any order."""
    first = Process(open_with_clock(clock := Clock()), clock)
    second = Process(open_with_clock(own := Clock(clock.ticks)), own)
    begin(first)
    own.ticks = clock.ticks
    own.advance(ahead)
    for step in range(480):
        order = (first, second) if step % 3 else (second, first)
        for process in order:
            with suppress(KeyInUse, RecordChanged):
                while process.step("s"):
                    pass
            process.clock.advance(0.5)
    first.settle("s")
    queue = bridge.run(first.between.store.catalogue.queue(APP, "q"))
    # 240 seconds from 20 s before the first tick: 20, 80, 140, 200.
    assert bodies(first.between.store, queue) == {"tick": 4}


def test_at_the_same_moment(store: Store, open_store: Callable[[], Store], clock: Clock) -> None:
    """Many processes that fire at the same moment publish each tick once."""
    processes = [Process(each, clock) for each in (store, open_store(), open_store())]
    begin(processes[0])
    for _ in range(3):
        clock.advance(60)
        call_concurrently(_fire, processes * 2)
    processes[0].settle("s")
    assert bodies(store, bridge.run(store.catalogue.queue(APP, "q"))) == {"tick": 3}


def _fire(process: Process) -> None:
    with suppress(KeyInUse, RecordChanged):
        process.step("s")


class TestMissed:
    """Tests of ticks that were missed because no process was running."""

    def test_skipped(self, process: Process, store: Store) -> None:
        """Missed ticks are not posted by default; the next one is, when it is due."""
        first = begin(process)
        process.clock.advance(20 + 600 + 59)
        process.settle("s")
        assert bodies(store, bridge.run(store.catalogue.queue(APP, "q"))) == {"tick": 1}
        report = process.report("s")
        assert report.last is not None
        assert report.last.instant == first + 600
        assert report.next[0] == first + 660

    def test_too_late(self, process: Process, store: Store) -> None:
        """A tick is posted within a minute or not at all, and the schedule says so."""
        first = begin(process, every=3600)
        process.clock.advance(3600 - 40 + 61)
        process.settle("s")
        assert bodies(store, bridge.run(store.catalogue.queue(APP, "q"))) == {}
        report = process.report("s")
        assert report.last is not None
        assert (report.last.state, report.last.instant, report.next[0]) == ("skipped", first, first + 3600)

    def test_caught_up(self, process: Process, store: Store) -> None:
        """Missed ticks are posted one after another, each once."""
        first = begin(process, missed="catch_up")
        process.clock.advance(20 + 600)
        process.settle("s")
        assert bodies(store, bridge.run(store.catalogue.queue(APP, "q"))) == {"tick": 11}
        assert process.report("s").next[0] == first + 660

    @pytest.mark.slow_on("cassandra")
    def test_not_endlessly(self, process: Process, store: Store) -> None:
        """At most the newest hundred ticks are caught up."""
        begin(process, missed="catch_up")
        process.clock.advance(20 + 60 * 150)
        process.settle("s")
        assert bodies(store, bridge.run(store.catalogue.queue(APP, "q"))) == {"tick": schedule_states.MAX_CAUGHT_UP}

    def test_while_paused(self, process: Process, store: Store) -> None:
        """Ticks during a pause are not caught up, whatever the schedule says of missed ticks."""
        first = begin(process, missed="catch_up")
        queue = bridge.run(store.catalogue.queue(APP, "q"))
        current_plan = process.report("s").plan
        assert process.put("s", pause_plan(current_plan)).next == []
        process.clock.advance(20 + 600)
        process.settle("s")
        assert process.put("s", current_plan).next[0] == first + 660
        process.settle("s")
        assert bodies(store, queue) == {}


class TestUnknown:
    """Tests of ticks that cannot be finished safely."""

    def stop_after_post(self, process: Process) -> None:
        begin(process)
        process.clock.advance(20)
        process.kill_at(CALLS, after=False)
        process.between.instead(Records.set_record, _make_dying_set_record(process.between.real))
        with suppress(Killed):
            process.step("s")

    def test_too_old(self, process: Process, other: Store) -> None:
        """Well before a key is forgotten, its tick is not posted again: it is reported as unknown, and not doubled."""
        self.stop_after_post(process)
        queue = bridge.run(other.catalogue.queue(APP, "q"))
        before = bodies(other, queue)
        process.clock.advance(schedule_states.MAX_FIRING_SECONDS + 1)
        late = Process(other, process.clock)
        late.step("s")
        report = late.report("s")
        assert report.last is not None
        assert (report.last.state, report.firing) == ("unknown", None)
        assert bodies(other, queue) == before
        assert schedule_states.MAX_FIRING_SECONDS * 2 < schedule_states.KEY_SECONDS

    def test_purged_in_between(self, process: Process, other: Store) -> None:
        """After a purge, which forgets the key, the message is not posted again."""
        self.stop_after_post(process)
        queue = bridge.run(other.catalogue.purge_queue(bridge.run(other.catalogue.queue(APP, "q", fresh=True))))
        late = Process(other, process.clock)
        late.settle("s")
        report = late.report("s")
        assert report.last is not None
        assert report.last.state == "unknown"
        assert bodies(other, queue) == {}


def _make_dying_set_record(store: Store) -> Callable[..., object]:
    """Returns a method whose first call sets a record; each later one raises Killed."""
    calls = []

    def call(*args: object) -> object:
        calls.append(1)
        if len(calls) > 1:
            raise Killed
        return bridge.run(store.records.set_record(*args))  # type: ignore[arg-type] # as it was called

    return call


class TestFailing:
    """Tests of posts that fail."""

    def test_no_queue(self, process: Process, store: Store) -> None:
        """A tick for a missing queue fails, and the schedule says so; once the queue exists the next tick is posted."""
        begin(process)
        bridge.run(store.catalogue.delete_queue(bridge.run(store.catalogue.queue(APP, "q"))))
        process.clock.advance(20)
        process.settle("s")
        report = process.report("s")
        assert report.last is not None
        assert report.last.state == "failed"
        assert "does not exist" in report.last.error
        queue, _ = bridge.run(store.catalogue.create_queue(APP, "q", QueueSpec(read_delay=0.0)))
        process.clock.advance(60)
        process.settle("s")
        assert bodies(store, queue) == {"tick": 1}

    def test_a_store_that_is_away(self, process: Process, store: Store) -> None:
        """A tick whose post fails is posted once when the store is available again."""
        begin(process)
        process.clock.advance(20)
        process.between.instead(KeyedPosts.append_once, _raise_unavailable)
        with pytest.raises(StoreUnavailable):
            process.step("s")
        process.between.restore(KeyedPosts.append_once)
        process.settle("s")
        assert bodies(store, bridge.run(store.catalogue.queue(APP, "q"))) == {"tick": 1}


def _raise_unavailable(*_args: object, **_named: object) -> object:
    raise StoreUnavailable("away")


class TestChanging:
    """Tests of changes by owners."""

    def test_made_again(self, process: Process, store: Store) -> None:
        """A schedule that is removed and made again under its name fires as any other; old keys do not count."""
        first = begin(process)
        process.clock.advance(20)
        process.settle("s")
        current_plan = process.report("s").plan
        process.core.run(process.schedules.remove(APP, "s", bool))
        with pytest.raises(ScheduleNotFound):
            process.report("s")
        process.put("s", current_plan)
        # As if a process whose clock is behind had made it.
        record = process.find("s")
        again = replace(schedule_states.decode(record.value), next=first)
        bridge.run(
            store.records.set_record(
                replace(record, value=schedule_states.encode(again), due=schedule_states.find_next_step_ticks(again))
            )
        )
        process.settle("s")
        assert bodies(store, bridge.run(store.catalogue.queue(APP, "q"))) == {"tick": 2}

    def test_a_tick_is_not_repeated_by_a_change(self, process: Process, store: Store) -> None:
        """A change by a process whose clock is behind does not repeat a tick that was fired."""
        first = begin(process)
        process.clock.advance(20)
        process.settle("s")
        process.clock.advance(-S)
        queue = bridge.run(store.catalogue.queue(APP, "q"))
        assert process.put("s", plan(queue, "new", every=30, anchor=first)).next[0] == first + 30
        process.clock.advance(S)
        process.settle("s")
        assert bodies(store, queue) == {"tick": 1}

    def test_changed_while_it_fires(self, process: Process, other: Store) -> None:
        """The message that is being posted stays as it was; the next one uses the changed plan."""
        begin(process)
        process.clock.advance(20)
        process.kill_at(6, after=False)
        with suppress(Killed):
            process.step("s")
        late = Process(other, process.clock)
        queue = bridge.run(other.catalogue.queue(APP, "q"))
        report = late.report("s")
        assert report.firing is not None
        late.put("s", plan(queue, "new", anchor=report.plan.timetable.anchor))
        late.settle("s")
        assert bodies(other, queue) == {"tick": 1}
        process.clock.advance(60)
        late.settle("s")
        assert bodies(other, queue) == {"tick": 1, "new": 1}

    def test_run_now(self, process: Process, store: Store) -> None:
        """Running a schedule posts a message at once, also if it is paused, each time; the timetable is unchanged."""
        first = begin(process)
        core = process.service.core
        for number in (1, 2):
            report = core.run(process.schedules.fire(APP, "s", bool))
            assert report.last is not None
            assert (report.last.state, report.next[0]) == ("published", first)
            assert bodies(store, bridge.run(store.catalogue.queue(APP, "q"))) == {"tick": number}
            process.clock.advance(0.1)
        process.put("s", pause_plan(process.report("s").plan))
        assert core.run(process.schedules.fire(APP, "s", bool)).next == []
        assert bodies(store, bridge.run(store.catalogue.queue(APP, "q"))) == {"tick": 3}

    def test_hidden(self, process: Process) -> None:
        """A caller that may not manage a queue sees none of its schedules, and cannot take their names."""
        begin(process)
        current_plan = process.report("s").plan
        nothing: Callable[[str], bool] = lambda _queue: False  # noqa: E731 - a short name
        with pytest.raises(ScheduleNotFound):
            process.core.run(process.schedules.show(APP, "s", nothing))
        with pytest.raises(ScheduleNotFound):
            process.core.run(process.schedules.remove(APP, "s", nothing))
        with pytest.raises(ScheduleNotFound):
            process.service.core.run(process.schedules.fire(APP, "s", nothing))
        with pytest.raises(NotAllowed):
            process.core.run(process.schedules.put(APP, "s", lambda _before, _now: current_plan, nothing))
        assert process.core.run(process.schedules.list(APP, nothing)) == ([], None)

    def test_as_many_as_there_may_be(self, process: Process) -> None:
        """An application has a limited number of schedules; existing ones can still be changed."""
        begin(process)
        current_plan = process.report("s").plan
        with replace_in(use_cases, use_cases.MAX_SCHEDULES, 3):
            process.put("s2", current_plan)
            process.put("s3", current_plan)
            with pytest.raises(TooManySchedules):
                process.put("s4", current_plan)
            process.put("s3", pause_plan(current_plan))


DAY = 86_400
AHEAD = pytest.mark.parametrize("ahead", [2 * 3600, 5 * DAY, 400 * DAY], ids=["hours", "days", "years"])


def count_published(*processes: Process) -> int:
    """Counts published ticks; messages far ahead of the clock cannot be read on Cassandra."""
    return sum(each.firing.counts["published"] for each in processes)


class TestClockThatWasAhead:
    """After the clock was ahead and is right again, every schedule goes on."""

    @AHEAD
    @pytest.mark.parametrize("missed", ["skip", "catch_up"])
    def test_fired_while_ahead(self, process: Process, store: Store, ahead: int, missed: Missed) -> None:
        """Schedules continue from now, at their times, each tick once; ticks of the future do not count."""
        first = begin(process, missed=missed)
        process.clock.advance(ahead + 20)
        process.settle("s")
        process.clock.advance(-ahead)
        before = count_published(process)
        process.settle("s")
        assert process.report("s").next[0] == first + 60
        for count in (1, 2, 3):
            process.clock.advance(60)
            process.settle("s")
            assert count_published(process) == before + count
            assert process.report("s").next[0] == first + 60 * (count + 1)

    @AHEAD
    def test_killed_while_ahead(self, process: Process, store: Store, other: Store, ahead: int) -> None:
        """A firing begun while the clock was ahead ends as unknown, or with one message, and the schedule continues."""
        first = begin(process)
        process.clock.advance(ahead + 20)
        process.kill_at(4, after=True)
        with pytest.raises(Killed):
            process.settle("s")
        process.clock.advance(-ahead)
        later = Process(other, process.clock)
        later.settle("s")
        assert later.report("s").firing is None
        before = count_published(later)
        process.clock.advance(60)
        later.settle("s")
        assert count_published(later) == before + 1
        assert later.report("s").next[0] == first + 120
