"""W, U, S, D and C: valid combinations, the steps of a change, and the values that a process uses."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuey.model.errors import SettingsError
from queuey.storage.cassandra.cluster import Statement
from queuey.storage.cassandra.cluster.options import CassandraOptions
from queuey.storage.cassandra.cluster.timing import (
    LEASE,
    MANY_CENTRES_TIMING,
    MAX_CLAIM_SECONDS,
    ONE_CENTRE_TIMING,
    KeyspaceTiming,
    LevelTiming,
    StoredTiming,
    change_values,
    decode,
    encode,
    make_final,
    make_settled,
    make_step,
)
from queuey.storage.cassandra.time.timing_in_force import READ_INTERVAL, TimingInForce
from tests.storage.cassandra.simulated import FaultlessDriver

seconds = st.floats(0.001, 60.0)


@st.composite
def timings(draw: st.DrawFn) -> KeyspaceTiming:
    difference = draw(seconds)
    levels = {}
    for name in ("strong", "very_strong"):
        deadline, undo = draw(seconds), draw(st.floats(0.0, 60.0))
        levels[name] = LevelTiming(deadline, undo, deadline + undo + difference + draw(st.floats(0.0, 10.0)))
    longest = min(level.delay for level in levels.values()) - difference
    return KeyspaceTiming(difference, longest * draw(st.floats(0.01, 1.0)), levels).check()


@given(old=timings(), new=timings())
def test_each_step_of_a_change_keeps_both_sets(old: KeyspaceTiming, new: KeyspaceTiming) -> None:
    """At each step of a change writers keep the stricter values of both timings, and readers assume the weaker ones."""
    step = make_step(make_settled(old), new, "x", 0.0)
    kept, assumed = step.kept, step.assumed
    for name, level in kept.levels.items():
        for promised in (old, new):
            assert level.deadline <= promised.levels[name].deadline
            assert level.delay <= promised.levels[name].delay <= assumed.levels[name].delay
            assert kept.clock_difference <= promised.clock_difference <= assumed.clock_difference
            assert kept.row_age <= promised.row_age <= assumed.row_age
            # What counts as undone in time counts for readers of either timing.
            assert step.unseen[name] <= promised.levels[name].delay - promised.clock_difference + 1e-9
            assert step.unseen[name] >= level.deadline + level.undo - 1e-9
        # Readers of either timing, and of both, wait for writers of either.
        assert assumed.levels[name].delay >= level.deadline + level.undo + kept.clock_difference - 1e-9


def test_claims_outlive_a_change() -> None:
    """Claims from before a change were made with clocks that differed more; for others they end as late as before."""
    step = make_step(make_settled(MANY_CENTRES_TIMING), ONE_CENTRE_TIMING, "x", 1000.0)
    ended = make_final(step, ONE_CENTRE_TIMING, "y", 1020.0)
    assert (step.claim_margin(1000.0), ended.claim_margin(1020.0 + MAX_CLAIM_SECONDS - 1)) == (1.0, 1.0)
    assert ended.claim_margin(1020.0 + MAX_CLAIM_SECONDS) == 0.25
    again = make_final(make_step(ended, ONE_CENTRE_TIMING, "z", 2000.0), ONE_CENTRE_TIMING, "z", 2020.0)
    assert again.claim_margin(2020.0 + MAX_CLAIM_SECONDS - 1) == 1.0
    raised = make_final(
        make_step(make_settled(ONE_CENTRE_TIMING), MANY_CENTRES_TIMING, "x", 1000.0), MANY_CENTRES_TIMING, "y", 1020.0
    )
    assert raised.claim_margin(1020.0) == 1.0


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (KeyspaceTiming(0.25, 0.75, {"strong": LevelTiming(0.4, 0.35, 0.9)}), ["strong", "0.9", "0.4", "0.35", "0.25"]),
        (KeyspaceTiming(0.25, 0.8, {"strong": LevelTiming(0.4, 0.35, 1.0)}), ["strong", "0.8", "0.75"]),
    ],
)
def test_what_does_not_go_together(wrong: KeyspaceTiming, words: list[str]) -> None:
    """An invalid combination is refused with an error that names all its values."""
    with pytest.raises(SettingsError) as caught:
        wrong.check()
    assert [word for word in words if word not in str(caught.value)] == []


def test_the_least_delay_follows() -> None:
    """W, U and S determine the other values; values that are given are used."""
    both = ["strong", "very_strong"]
    assert (
        change_values(MANY_CENTRES_TIMING, both, {"deadline": 0.4, "undo": 0.35, "clock_difference": 0.25})
        == ONE_CENTRE_TIMING
    )
    assert (
        change_values(ONE_CENTRE_TIMING, both, {"deadline": 3.0, "undo": 1.0, "clock_difference": 1.0})
        == MANY_CENTRES_TIMING
    )
    one = change_values(ONE_CENTRE_TIMING, ["very_strong"], {"deadline": 2.0, "delay": 4.0})
    assert (one.levels["strong"], one.levels["very_strong"]) == (
        ONE_CENTRE_TIMING.levels["strong"],
        LevelTiming(2.0, 0.35, 4.0),
    )
    assert change_values(ONE_CENTRE_TIMING, both, {"row_age": 0.3}) == msgspec.structs.replace(
        ONE_CENTRE_TIMING, row_age=0.3
    )
    for wrong in ({"deadline": 0.0}, {"undo": -1.0}, {"clock_difference": 0.0}, {"delay": 0.5}, {"row_age": 0.8}):
        with pytest.raises(SettingsError):
            change_values(ONE_CENTRE_TIMING, both, wrong)


@given(kept=timings(), assumed=timings())
def test_what_stands_there_is_read_as_it_was_written(kept: KeyspaceTiming, assumed: KeyspaceTiming) -> None:
    """A change compares the text that it has read."""
    stored = StoredTiming("x", kept, assumed, kept.unseen(), 1.0, 5.0)
    assert decode(encode(stored)) == stored
    assert encode(decode(encode(stored))) == encode(stored)


def test_another_format_is_refused() -> None:
    """Stored text of a newer or unknown format is rejected."""
    with pytest.raises(SettingsError, match="newer"):
        decode(encode(msgspec.structs.replace(make_settled(ONE_CENTRE_TIMING), format=2)))
    with pytest.raises(SettingsError, match="cannot be read"):
        decode("{}")


def store_timing(driver: FaultlessDriver, stored: StoredTiming | None) -> None:
    values = 0, None if stored is None else encode(stored)
    driver.run(Statement("INSERT INTO migrations (singleton, timing) VALUES (?, ?)"), values)


def test_times_count_for_the_lease() -> None:
    """A read of the timing counts from when its request was sent; a late answer changes nothing."""
    driver = FaultlessDriver()
    store_timing(driver, make_settled(MANY_CENTRES_TIMING, "a"))
    timing, clock = TimingInForce(CassandraOptions(follow=True), driver.clock()), driver.clock()
    driver.held = True
    for _ in range(2):
        driver.advance(READ_INTERVAL)
        read_at = clock.boottime()
        timing.refresh(driver)
    late, latest = driver.waiting
    driver.held = False
    store_timing(driver, make_settled(ONE_CENTRE_TIMING, "b"))
    latest()
    store_timing(driver, make_settled(MANY_CENTRES_TIMING, "a"))
    late()
    assert timing.stored.kept == ONE_CENTRE_TIMING
    assert (timing.is_fresh(read_at + LEASE), timing.is_fresh(read_at + LEASE + 0.001)) == (True, False)


def test_a_keyspace_without_timing() -> None:
    """Until the keyspace has its timing, a process serves nothing, and names the command that writes it."""
    driver = FaultlessDriver()
    timing = TimingInForce(CassandraOptions(follow=True), driver.clock())
    store_timing(driver, make_settled(ONE_CENTRE_TIMING, "a"))
    assert driver.calls.run(timing.renew(driver)) is None
    store_timing(driver, None)
    driver.advance(READ_INTERVAL)
    assert "queuey migrate" in str(driver.calls.run(timing.renew(driver)))
