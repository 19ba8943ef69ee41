"""The port of a service: nobody else gets it from the first moment, and it accepts connections only at the end."""

from __future__ import annotations

import errno
import socket
from contextlib import ExitStack

import pytest

from queuey.web.http import processes
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


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("options", [(), (socket.SO_REUSEADDR,)])
def test_a_port_that_is_prepared(count: int, options: tuple[int, ...]) -> None:
    """A bound port refuses connections and other services until it listens; then each worker's socket accepts some."""
    with ExitStack() as stack:
        listeners = [stack.enter_context(listener) for listener in processes.bind("127.0.0.1", 0, count)]
        address = processes.address_of(listeners[0])
        assert {processes.address_of(listener) for listener in listeners} == {address}
        assert refuses(address)
        assert not is_free(address, *options)
        with pytest.raises(OSError, match="in use"):
            processes.bind(*address, 1)
        processes.listen(listeners, 10)
        assert not refuses(address)
        assert not is_free(address, *options)
        with pytest.raises(OSError, match="in use"):
            processes.bind(*address, 1)


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
