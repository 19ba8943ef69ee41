"""Sessions at servers that are silent or answer in pieces: the handler's wire, and the lease that it keeps."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qdo.group.vitals import Vitals
from qdo.group.zookeeper.handler import CLOSE_TIMEOUT, MAX_READ_BYTES, Handler, SessionLease, Wire
from tests.waiting import MovedClock

GREETING = struct.pack(">iiiq", 16, 0, 6000, 99)
REQUEST = struct.pack(">iii", 8, 1, 3)
ANSWER = struct.pack(">iiqi", 16, 1, 7, 0)
EVENT = struct.pack(">iiqi", 16, -1, 7, 0)


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a connection: ours and the server's."""
    ours, theirs = socket.socketpair()
    ours.settimeout(0)
    with ours, theirs:
        yield ours, theirs


def make(ours: socket.socket, closing: float = CLOSE_TIMEOUT) -> tuple[Wire, Handler, SessionLease, MovedClock]:
    hand = MovedClock()
    lease = SessionLease(3.0, hand)
    return Wire(ours, lease), Handler(lease, None, closing), lease, hand


@given(st.lists(st.binary(min_size=1, max_size=300), max_size=12), st.lists(st.integers(1, 500), min_size=1))
def test_bytes_come_in_order(pieces: list[bytes], sizes: list[int]) -> None:
    """Every byte comes once, then the end, in whatever portions the server writes and kazoo reads."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        wire, handler, _, _ = make(ours)
        ours.settimeout(0)
        for piece in pieces:
            theirs.sendall(piece)
        theirs.close()
        read = []
        for number in range(10_000):
            ready, _, _ = handler.select([wire], [], [], 1.0)
            assert ready == [wire]
            data = wire.recv(sizes[number % len(sizes)])
            if not data:
                break
            read.append(data)
        assert b"".join(read) == b"".join(pieces)


def test_the_first_packet_tells_the_timeout(ends: tuple[socket.socket, socket.socket]) -> None:
    """The timeout granted by the server is used, even if its packet comes in parts."""
    ours, theirs = ends
    wire, handler, lease, hand = make(ours)
    wire.send(REQUEST)
    for byte in GREETING:
        theirs.sendall(bytes([byte]))
        handler.select([wire], [], [], 1.0)
        wire.recv(MAX_READ_BYTES)
    assert lease.timeout == 6.0
    hand.now += 5
    assert lease.silence == 5


def test_answers_renew_the_lease(ends: tuple[socket.socket, socket.socket]) -> None:
    """Answers renew the lease from the sending of their request; events and the end of the connection do not."""
    ours, theirs = ends
    wire, handler, lease, hand = make(ours)

    def read(data: bytes) -> None:
        theirs.sendall(data)
        handler.select([wire], [], [], 1.0)
        wire.recv(MAX_READ_BYTES)

    wire.send(REQUEST)
    read(GREETING)
    hand.now += 1
    wire.send(REQUEST)
    hand.now += 1
    wire.send(REQUEST)
    hand.now += 1
    read(ANSWER)
    assert lease.silence == 2
    read(EVENT)
    assert lease.silence == 2
    read(ANSWER)
    assert lease.silence == 1
    theirs.recv(MAX_READ_BYTES)
    theirs.close()
    handler.select([wire], [], [], 1.0)
    assert lease.silence == 1


def test_a_server_has_little_time_for_its_first_answer(ends: tuple[socket.socket, socket.socket]) -> None:
    """A connection attempt ends early, whatever kazoo allows, so that others can be tried in time."""
    ours, _ = ends
    hand = MovedClock()
    handler = Handler(SessionLease(0.05, hand), None)
    assert handler.select([Wire(ours, SessionLease(0.05, hand))], [], [], 3600.0) == ([], [], [])


def test_closing_takes_little_time(ends: tuple[socket.socket, socket.socket]) -> None:
    """Closing does not wait for a server that does not answer."""
    ours, theirs = ends
    wire, handler, _, _ = make(ours, closing=0.05)
    theirs.sendall(GREETING)
    handler.select([wire], [], [], 1.0)
    wire.recv(MAX_READ_BYTES)
    handler.stop()
    assert handler.select([wire], [], [], 3600.0) == ([], [], [])
    with pytest.raises(TimeoutError):
        handler.select([wire], [], [], 3600.0)


INSTANTS = st.lists(st.floats(0.0, 30.0), min_size=1, max_size=20)


def granted_lease(timeout: float = 10.0) -> tuple[SessionLease, MovedClock]:
    hand = MovedClock()
    lease = SessionLease(1.0, hand)
    lease.grant(timeout, hand.now)
    return lease, hand


def test_silence_breaks_then_lapses() -> None:
    """After two thirds of the timeout the connection is broken; after all of it the session may be over."""
    lease, hand = granted_lease(9.0)
    seen = []
    for _ in range(10):
        hand.now += 1
        seen.append((lease.broken, lease.lapsed))
    assert seen == [(False, False)] * 6 + [(True, False)] * 3 + [(True, True)]


def test_what_was_found_lapsed_stays_so() -> None:
    """A lapse that was seen is final, even if another process hears the servers in the same instant."""
    hand, vitals = MovedClock(), Vitals.create(60.0)
    lease = SessionLease(10.0, hand, vitals)
    vitals.record_answer(hand.now)
    hand.now += 11
    assert lease.lapsed
    vitals.record_answer(hand.now)
    assert lease.lapsed
    vitals.close()


def test_a_process_that_heard_too_late_once_does_not_take_it_back() -> None:
    """A lapse that one process recorded is kept when another connection records an answer."""
    vitals = Vitals.create(60.0)
    vitals.record_answer(1.0, lapsed=True)
    vitals.record_answer(2.0)
    assert vitals.lapsed
    vitals.close()


@given(INSTANTS)
def test_a_lease_lives_while_no_silence_is_too_long(pauses: list[float]) -> None:
    """For any sequence of answers the lease has lapsed if and only if one pause was longer than the timeout."""
    lease, hand = granted_lease(10.0)
    longest = 0.0
    for pause in pauses:
        before = hand.now
        hand.now += pause
        longest = max(longest, hand.now - before)
        assert lease.lapsed == (longest > 10.0)
        lease.renew(hand.now)
        assert lease.lapsed == (longest > 10.0)
