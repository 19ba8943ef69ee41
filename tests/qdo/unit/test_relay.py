"""The helper process between a program and a ZooKeeper server."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from qdo.group.vitals import Vitals, now
from qdo.group.zookeeper import relay
from qdo.group.zookeeper.relay import Encryption, Relay
from tests.qdo.unit.zookeeper.test_handler import ANSWER, EVENT, GREETING, REQUEST
from tests.replacing import replace_in
from tests.waiting import MovedClock, join

PATIENCE = 60.0


class Relayed:
    """A relay in a thread, between a program and a server that the test plays, by a clock that the test moves.

    Attributes:
        program, server: The ends of the program and of the server.
        vitals: What the relay knows of the program and its server.
        hand: The clock.
    """

    def __init__(self, opened: ExitStack) -> None:
        (self.program, program), (self.server, server) = socket.socketpair(), socket.socketpair()
        for end in (self.program, self.server, program, server):
            opened.enter_context(end).settimeout(PATIENCE)
        for end in (program, server):
            end.settimeout(0.0)
        self.vitals, self.hand = Vitals.create(60.0), MovedClock()
        opened.callback(self.vitals.close)
        opened.enter_context(replace_in(relay, now, self.hand))
        self.thread = threading.Thread(target=self._run, args=(program, server))
        self.thread.start()

    def _run(self, program: socket.socket, server: socket.socket) -> None:
        Relay(self.vitals, program, server).run()
        for end in (program, server):
            end.close()

    def ask(self) -> float:
        """Sends a request; returns when it arrived."""
        self.program.sendall(REQUEST)
        assert self.server.recv(100) == REQUEST
        return self.hand.now

    def answer(self, packet: bytes) -> bytes:
        self.server.sendall(packet)
        return self.program.recv(100)


@pytest.fixture
def relayed() -> Iterator[Relayed]:
    """A relay that ends with its test."""
    with ExitStack() as opened:
        made = Relayed(opened)
        yield made
        made.program.close()
        join(made.thread)


def test_the_last_word_of_a_program_counts(relayed: Relayed) -> None:
    """Data sent before the program closed reaches the server, so that it learns of the session's end."""
    relayed.program.sendall(REQUEST)
    relayed.program.close()
    assert relayed.server.recv(100) == REQUEST
    assert relayed.server.recv(100) == b""


@pytest.mark.needs_programs
def test_a_server_that_does_not_agree_on_encryption_is_given_up() -> None:
    """Connecting gives up in its time, so that some is left for the other servers."""
    vitals = Vitals.create(60.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        server = socket.create_connection(silent.getsockname())
        encryption = Encryption(None, None, None, None, check_hostname=False)
        with pytest.raises(ConnectionRefusedError):
            relay.start_relay(vitals, server, "127.0.0.1", encryption, 0.1)
    vitals.close()


def test_a_server_is_heard_from_the_instant_of_the_answered_request(relayed: Relayed) -> None:
    """An answer counts from its request, however late it comes; an event of the server answers no request."""
    sent_at = relayed.ask()
    relayed.hand.now += 1.5
    assert relayed.answer(GREETING) == GREETING
    assert relayed.vitals.last_heard == sent_at
    sent_at = relayed.ask()
    relayed.hand.now += 1.5
    assert relayed.answer(EVENT) == EVENT
    assert relayed.vitals.last_heard != sent_at
    assert relayed.answer(ANSWER) == ANSWER
    assert relayed.vitals.last_heard == sent_at
    relayed.ask()
    relayed.hand.now += 6.1
    assert relayed.answer(ANSWER) == b"", "it came after the session timeout"
    assert relayed.vitals.lapsed
