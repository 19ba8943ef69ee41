"""One deadline for all waits of a call."""

from __future__ import annotations

import math
import threading

import pytest

from queuey.model.errors import StoreUnavailable
from queuey.storage.deadlines import Deadline
from tests.waiting import MovedClock, call_until


@pytest.fixture
def clock() -> MovedClock:
    return MovedClock(100.0)


@pytest.fixture
def deadline(clock: MovedClock) -> Deadline:
    return Deadline(15, clock)


def test_a_call_has_what_is_left(clock: MovedClock, deadline: Deadline) -> None:
    """Each wait gets the rest of the call's time, or less if it needs less."""
    with deadline.running():
        assert deadline.time_left() == 15
        clock.now += 10
        assert (deadline.time_left(), deadline.time_left(4)) == (5, 4)
        clock.now += 5
        with pytest.raises(StoreUnavailable, match="deadline of 15 s") as raised:
            deadline.time_left(4)
        assert raised.value.outcome == "none"


def test_a_call_that_has_sent_a_change_ends_in_doubt(clock: MovedClock, deadline: Deadline) -> None:
    """A change is unknown when the call's time is over after it was sent; the next call is not affected."""
    for sent in (True, False):
        with deadline.running():
            if sent:
                deadline.mark_sent()
            clock.now += 16
            with pytest.raises(StoreUnavailable) as raised:
                deadline.time_left()
        assert raised.value.outcome == ("unknown" if sent else "none")
        deadline.mark_sent()


def test_what_a_preparation_changes_does_not_count(clock: MovedClock, deadline: Deadline) -> None:
    """If the time is over in a preparation or after it, nothing is written, unless something was sent before."""

    def prepare_late() -> None:
        with deadline.preparing():
            deadline.mark_sent()
            deadline.time_left()

    for sent in (False, True):
        with deadline.running():
            if sent:
                deadline.mark_sent()
            with deadline.preparing():
                deadline.mark_sent()
            clock.now += 16
            with pytest.raises(StoreUnavailable) as after:
                deadline.time_left()
            with pytest.raises(StoreUnavailable) as within:
                prepare_late()
            assert {after.value.outcome, within.value.outcome} == {"unknown" if sent else "none"}


def test_a_call_within_another_has_no_more_time(clock: MovedClock, deadline: Deadline) -> None:
    """A call made by another call ends with it, whatever its own time."""
    with deadline.running():
        clock.now += 10
        with deadline.running():
            assert deadline.time_left() == 5
        with deadline.running(call_until(clock.now + 1)):
            assert deadline.time_left() == 1
        assert deadline.time_left() == 5


def test_outside_of_calls_nothing_ends(deadline: Deadline) -> None:
    """Work outside of calls, and of other threads, has no deadline."""
    assert deadline.time_left(7) == 7
    remaining: list[float] = []
    with deadline.running():
        thread = threading.Thread(target=lambda: remaining.append(deadline.time_left(99)))
        thread.start()
        thread.join(60)
    assert remaining == [99]


def test_waiting_ends_with_the_call() -> None:
    """A wait for something that never happens fails when the call's time is over."""
    lock = threading.Lock()
    assert lock.acquire(timeout=60)
    deadline = Deadline(0.05)
    with deadline.running(), pytest.raises(StoreUnavailable):
        deadline.wait(lock.acquire)
    Deadline(math.inf).wait(threading.Semaphore(1).acquire)
