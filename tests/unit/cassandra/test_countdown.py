"""Requests side by side: how many of them, and who waits for them."""

from __future__ import annotations

import math

import pytest

from queuey.errors import StoreUnavailable
from queuey.storage.cassandra.driver.countdown import Countdown
from queuey.storage.deadlines import Deadline


def test_answers_come_in_the_order_of_the_requests() -> None:
    """Whichever is answered first, rows and errors are those of their requests."""
    gathering = Countdown(3, Deadline(math.inf))
    takers = [gathering.taker(number) for number in range(3)]
    error = StoreUnavailable("no")
    takers[2]([("c",)], None)
    takers[0]([("a",)], None)
    takers[1](None, error)
    assert gathering.wait() == ([[("a",)], [], [("c",)]], [error])


def test_no_more_are_on_the_way_than_was_said() -> None:
    """A further request may be sent when one before it has been answered, and not after the call's deadline."""
    deadline = Deadline(0.05)
    gathering = Countdown(5, deadline, most=2)
    takers = [gathering.taker(number) for number in range(2)]
    with deadline.running(), pytest.raises(StoreUnavailable):
        gathering.taker(2)
    takers[0]([], None)
    gathering.taker(2)


def test_answers_that_never_come_are_waited_for_until_the_deadline() -> None:
    """A call does not wait for an answer for longer than it may."""
    deadline = Deadline(0.05)
    with deadline.running(), pytest.raises(StoreUnavailable):
        Countdown(1, deadline).wait()
