"""Decisions about ticks, whatever the moments at which processes check them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, takewhile

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from queuey import ids
from queuey.messages import Meta
from queuey.service.due_work import sort_steps
from queuey.service.messages import Draft
from queuey.service.schedules import states
from queuey.service.schedules.states import MAX_CAUGHT_UP, MAX_LATE_SECONDS, Missed, Outcome, Plan, Schedule, TickChoice
from queuey.service.schedules.timetables import Timetable, iterate_instants
from tests.replacing import replace_in

BEGIN = 1_790_000_000
TIMETABLES = st.sampled_from(
    [
        Timetable(every=10, anchor=BEGIN),
        Timetable(every=45, anchor=BEGIN - 7),
        Timetable(every=86_400, anchor=BEGIN),
        Timetable("* * * * *"),
        Timetable("*/7 * * * *", "Europe/Berlin"),
        Timetable("30 2 * * *", "Europe/Berlin"),
    ]
)
STEPS = st.lists(st.floats(0.1, 30) | st.floats(30, 4000) | st.floats(4000, 200_000), min_size=1, max_size=25)
"""Seconds between two checks."""


def schedule(timetable: Timetable, missed: Missed) -> Schedule:
    plan = Plan("q", timetable, states.keep_message(Draft("x")), missed=missed)
    return states.reschedule(Schedule(7, BEGIN, BEGIN, plan), BEGIN)


def fire_due_ticks(before: Schedule, now: float) -> tuple[Schedule, list[int]]:
    """Fires ticks until none is due, and records skipped ones; returns the schedule and the fired instants."""
    fired: list[int] = []
    while True:
        ticks = states.choose_tick(before, now)
        if ticks.instant is None:
            return states.record_skip(before, ticks, now), fired
        fired.append(ticks.instant)
        began = states.begin_firing(states.pass_instant(before, ticks), ticks.instant, 1, 5)
        assert states.find_next_step_ticks(began) == 5 + states.FIRING_TIMEOUT * ids.TICKS_PER_SECOND
        before = states.end_firing(began, Outcome(ticks.instant, now, "published"))


@given(timetable=TIMETABLES, steps=STEPS)
def test_skipped(timetable: Timetable, steps: list[float]) -> None:
    """Missed ticks are skipped; of due ones the newest is fired if it is not late; none is fired twice or early."""
    current, now, last = schedule(timetable, "skip"), float(BEGIN), BEGIN
    for step in steps:
        now += step
        due = list(takewhile(lambda each: each <= now, iterate_instants(timetable, last)))  # noqa: B023 - at once
        expected = [each for each in due[-1:] if int(now) - each <= MAX_LATE_SECONDS]
        current, fired = fire_due_ticks(current, now)
        assert fired == expected
        if due:
            last = due[-1]
        assert current.next == next(iterate_instants(timetable, last))
        assert states.find_next_step_ticks(current) > ids.EPOCH_TICKS + now * ids.TICKS_PER_SECOND


@given(timetable=TIMETABLES, steps=STEPS)
def test_caught_up(timetable: Timetable, steps: list[float]) -> None:
    """All missed ticks, up to a limit, are fired in order, each once."""
    current, now, last = schedule(timetable, "catch_up"), float(BEGIN), BEGIN
    for step in steps:
        now += step
        due = list(takewhile(lambda each: each <= now, iterate_instants(timetable, last)))  # noqa: B023 - at once
        recent = [each for each in due if each >= int(now) - states.MAX_CATCH_UP_AGE][-MAX_CAUGHT_UP:]
        late = bool(due) and now - due[0] > MAX_LATE_SECONDS
        current, fired = fire_due_ticks(current, now)
        assert fired == (recent if late else due)
        if due:
            last = due[-1]
        assert current.next == next(iterate_instants(timetable, last))


@given(timetable=TIMETABLES, ahead=st.floats(0, 3), after=st.floats(0, 100))
def test_a_change_does_not_bring_a_tick_back(timetable: Timetable, ahead: float, after: float) -> None:
    """A process whose clock is behind sets no next instant at or below the last one that was fired."""
    current = schedule(timetable, "skip")
    assert current.next is not None
    first = current.next
    current, fired = fire_due_ticks(current, first + 0.0)
    assert fired == [first]
    changed = states.reschedule(
        replace(current, plan=replace(current.plan, paused=False)), first - ahead + after / 1000
    )
    assert changed.next is not None
    assert changed.next > first


@given(
    st.builds(
        Draft,
        body=st.text(min_size=1) | st.binary(min_size=1),
        ttl=st.none() | st.integers(1, 10**6),
        partition=st.none() | st.integers(1, 200),
        meta=st.none() | st.just(Meta("text/x", (("a", "b"),), json=False)),
        key=st.none() | st.text(max_size=9),
    )
)
def test_kept(draft: Draft) -> None:
    """A schedule is read as it was written, with its message."""
    made = states.begin_firing(schedule(Timetable("* * * * *"), "skip"), 1.5, 9, 8)
    made = replace(made, plan=replace(made.plan, message=states.keep_message(draft)), last=Outcome(1, 2.5, "unknown"))
    decoded = states.decode(states.encode(made))
    assert decoded == made
    assert decoded.plan.message.draft == draft


def test_keys() -> None:
    """Different ticks and different schedules have different keys; a tick fired twice has one key."""
    first = schedule(Timetable("* * * * *"), "skip")
    other = replace(first, identity=8)
    made = {
        firing.key
        for each in (first, other)
        for instant in (60, 60, 120, 60.5)
        if (firing := states.begin_firing(each, instant, 1, 2).firing) is not None
    }
    assert len(made) == 6


def test_coming() -> None:
    """The list of coming instants begins with the next one; a paused schedule has none."""
    made = schedule(Timetable(every=60, anchor=BEGIN), "skip")
    assert states.list_next_fire_times(made, 3) == list(islice(iterate_instants(made.plan.timetable, BEGIN), 3))
    paused = states.reschedule(replace(made, plan=replace(made.plan, paused=True)), BEGIN)
    assert (states.list_next_fire_times(paused, 3), states.find_next_step_ticks(paused)) == ([], ids.TICKS_MAX)


def test_next_instants_are_remembered() -> None:
    """Showing the list again computes nothing; a changed timetable, or a later tick, is computed again."""
    computed: list[Timetable] = []

    def counted(timetable: Timetable, after: float) -> Iterator[int]:
        computed.append(timetable)
        return iterate_instants(timetable, after)

    rare = [schedule(Timetable(f"{minute} 3 29 2 *", "Europe/Berlin"), "skip") for minute in range(5)]
    with replace_in(states, iterate_instants, counted):
        first = [states.list_next_fire_times(each, 5) for each in rare]
        assert computed == [each.plan.timetable for each in rare]
        assert [states.list_next_fire_times(each, 5) for each in rare] == first
        assert len(computed) == len(rare)
        plan = replace(rare[0].plan, timetable=Timetable("7 4 1 1 *"))
        changed = states.reschedule(replace(rare[0], plan=plan), BEGIN)
        assert states.list_next_fire_times(changed, 5) == list(islice(iterate_instants(plan.timetable, BEGIN), 5))
        later = states.pass_instant(rare[1], TickChoice(first[1][0], first[1][1]))
        assert states.list_next_fire_times(later, 4) == first[1][1:]
    assert states._instants_from.cache_info().maxsize == states.MAX_CACHED_TIMETABLES


def test_order_of_steps() -> None:
    """An application with many schedules does not delay those of others; its own are fired in order."""
    many = [(number, ("a", f"s{number}")) for number in range(100)]
    others = [(200, ("b", "s")), (201, ("b", "t")), (150, ("c", "s"))]
    ordered = sort_steps([*others, *reversed(many)])
    assert ordered[:5] == [("a", "s0"), ("c", "s"), ("b", "s"), ("a", "s1"), ("b", "t")]
    assert [name for application, name in ordered if application == "a"] == [name for _, (_, name) in many]
