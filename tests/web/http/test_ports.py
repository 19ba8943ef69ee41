"""The port of a service: nobody else gets it from the first moment, and it accepts connections only at the end."""

from __future__ import annotations

import errno
import math
import socket
from contextlib import ExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuey.web.http import processes
from queuey.web.http.processes import MAX_PAUSE, MIN_PAUSE, MIN_STEADY_LIFETIME, Restarts
from tests.replacing import replace_in


def refuses(address: tuple[str, int]) -> bool:
    try:
        socket.create_connection(address, timeout=60).close()
    except ConnectionRefusedError:
        return True
    return False


def is_free(address: tuple[str, int], *options: int) -> bool:
    """Returns whether another program could listen at an address."""
    with socket.socket() as other:
        try:
            for option in options:
                other.setsockopt(socket.SOL_SOCKET, option, 1)
            other.bind(address)
            other.listen()
        except OSError as error:
            return error.errno != errno.EADDRINUSE
    return True


def test_a_port_that_is_prepared() -> None:
    """A bound port refuses connections and other services until it listens; then each worker's socket accepts some."""
    with ExitStack() as stack:
        listeners = [stack.enter_context(listener) for listener in processes.bind("127.0.0.1", 0, 3)]
        address = processes.address_of(listeners[0])
        assert {processes.address_of(listener) for listener in listeners} == {address}
        for accepts in (False, True):
            assert refuses(address) != accepts
            assert not is_free(address)
            assert not is_free(address, socket.SO_REUSEADDR)
            with pytest.raises(OSError, match="in use"):
                processes.bind(*address, 1)
            processes.listen(listeners, 10)


class NeverListening(socket.socket):
    """A socket that fails where it is asked to listen."""

    def listen(self, backlog: int = 0, /) -> None:
        pytest.fail("a connection that it let in would be cut off")


def test_a_port_refuses_while_it_is_bound() -> None:
    """Binding listens at no time."""
    with replace_in(socket, socket.socket, NeverListening):
        for listener in processes.bind("127.0.0.1", 0, 2):
            listener.close()


def test_a_port_with_former_connections() -> None:
    """A service that starts again gets its port although connections of the one before are still being closed."""
    port = 0
    for _ in range(3):
        with ExitStack() as stack:
            [listener] = [stack.enter_context(listener) for listener in processes.bind("127.0.0.1", port, 1)]
            processes.listen([listener], 10)
            address = processes.address_of(listener)
            with socket.create_connection(address, timeout=60):
                listener.accept()[0].close()  # The side that closes first keeps the port for a time.
            port = address[1]


# The rule by which ended workers are restarted, without processes


KILLED, FAILED, LEFT = -9, 1, 0
AT_ONCE, NEVER = 0.0, math.inf

RULE = {
    "killed after it was up": (True, [(KILLED, 100.0)], AT_ONCE),
    "killed three times": (True, [(KILLED, 0.1)] * 3, 2 * MIN_PAUSE),
    "killed again and again": (True, [(KILLED, 0.1)] * 5000, MAX_PAUSE),
    "killed, then steady, then killed": (True, [*[(KILLED, 0.1)] * 9, (KILLED, MIN_STEADY_LIFETIME)], AT_ONCE),
    "killed before any was up": (False, [(KILLED, 0.1)], AT_ONCE),
    "failed after it was up": (True, [(FAILED, 100.0)], AT_ONCE),
    "failed right after its start, beside others": (True, [(FAILED, 0.1)] * 2, MIN_PAUSE),
    "left without an error": (True, [(LEFT, 0.1)], AT_ONCE),
    "failed before any was up": (False, [(FAILED, 0.1)], NEVER),
    "failed after kills before any was up": (False, [(KILLED, 0.1), (FAILED, 0.1)], NEVER),
}


@pytest.mark.parametrize(("was_up", "ends", "seconds"), RULE.values(), ids=RULE)
def test_the_rule(ends: list[tuple[int, float]], seconds: float, *, was_up: bool) -> None:
    """A worker that ended starts again after this time."""
    restarts = Restarts()
    if was_up:
        restarts.record_up(0.0)
    at_once = False
    for code, lifetime in ends:
        restarts.pop_due(math.nextafter(math.inf, 0.0))
        at_once = restarts.record_end(1, code, lifetime, 7.0)
    assert restarts.seconds_to_next(7.0) == seconds
    assert at_once is (seconds == AT_ONCE)


def test_one_that_failed_first_starts_when_another_is_up() -> None:
    """If another worker started, the settings work, so the failure had another cause."""
    restarts = Restarts()
    restarts.record_end(1, FAILED, 0.1, 5.0)
    assert restarts.pop_due(6.0) == []
    restarts.record_up(7.0)
    assert restarts.pop_due(7.0) == [1]
    assert restarts.seconds_to_next(7.0) == NEVER


ENDS = st.lists(
    st.tuples(st.integers(1, 4), st.sampled_from([KILLED, FAILED, LEFT]), st.floats(0, 2 * MIN_STEADY_LIFETIME))
)


@given(ends=ENDS, was_up=st.booleans())
def test_whatever_ends_starts_again_soon(ends: list[tuple[int, int, float]], *, was_up: bool) -> None:
    """With a worker that was once up, each that ends is started again, once, within the longest pause."""
    restarts = Restarts()
    if was_up:
        restarts.record_up(0.0)
    for number, code, lifetime in ends:
        restarts.record_end(number, code, lifetime, 0.0)
    due = restarts.pop_due(MAX_PAUSE)
    last = {number: code for number, code, _ in ends}
    assert sorted(due) == sorted(number for number, code in last.items() if was_up or code < 0)
    assert restarts.pop_due(MAX_PAUSE) == []
