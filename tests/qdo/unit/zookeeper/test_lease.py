"""How long a session counts as alive."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from qdo.coordination.zookeeper.driver.handler import SessionLease
from qdo.keepalive.vitals import Vitals

INSTANTS = st.lists(st.floats(0.0, 30.0), min_size=1, max_size=20)


class Hand:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        """Gives the time."""
        return self.now


def begun(timeout: float = 10.0) -> tuple[SessionLease, Hand]:
    """Returns a lease that was granted now."""
    hand = Hand()
    lease = SessionLease(1.0, hand)
    lease.grant(timeout, hand.now)
    return lease, hand


def test_nothing_lapses_before_it_began() -> None:
    """Connecting may take as long as it takes."""
    hand = Hand()
    lease = SessionLease(1.0, hand)
    hand.now += 100
    lease.hear(hand.now)
    assert not lease.lapsed
    assert not lease.broken
    lease.grant(1.0, hand.now)
    assert not lease.lapsed


def test_silence_breaks_then_lapses() -> None:
    """After two thirds of the timeout the connection is broken, after all of it the session may be over."""
    lease, hand = begun(9.0)
    seen = []
    for _ in range(10):
        hand.now += 1
        seen.append((lease.broken, lease.lapsed))
    assert seen == [(False, False)] * 6 + [(True, False)] * 3 + [(True, True)]


def test_an_answer_that_is_read_too_late_renews_nothing() -> None:
    """It may have arrived before the process was stopped; the session may have ended since."""
    lease, hand = begun(10.0)
    hand.now += 11
    lease.hear(hand.now)
    assert lease.lapsed
    assert lease.left == 0
    lease.hear(hand.now)
    assert lease.lapsed


def test_an_answer_counts_from_its_request() -> None:
    """The servers count from the request that they heard, however late their answer comes."""
    lease, hand = begun(10.0)
    hand.now += 1
    asked = hand.now
    hand.now += 8
    lease.hear(asked)
    assert lease.silence == 8
    assert lease.left == 2
    hand.now += 2.1
    assert lease.lapsed


def test_what_was_found_lapsed_stays_so() -> None:
    """Whoever looked has gone by it: that another process heard the servers in the same instant changes nothing."""
    hand, vitals = Hand(), Vitals.begin(60.0)
    lease = SessionLease(10.0, hand, vitals)
    vitals.heard(hand.now)
    hand.now += 11
    assert lease.lapsed
    vitals.heard(hand.now)
    assert lease.lapsed
    vitals.close()


def test_a_process_that_heard_too_late_once_does_not_take_it_back() -> None:
    """A second one, with another connection, writes down what it hears in the same place."""
    vitals = Vitals.begin(60.0)
    vitals.heard(1.0, lapsed=True)
    vitals.heard(2.0)
    assert vitals.lapsed
    vitals.close()


@given(INSTANTS)
def test_a_lease_lives_while_no_silence_is_too_long(pauses: list[float]) -> None:
    """Whatever the sequence of answers: it has lapsed if and only if one pause was longer than the timeout."""
    lease, hand = begun(10.0)
    longest = 0.0
    for pause in pauses:
        before = hand.now
        hand.now += pause
        longest = max(longest, hand.now - before)
        assert lease.lapsed == (longest > 10.0)
        lease.hear(hand.now)
        assert lease.lapsed == (longest > 10.0)
