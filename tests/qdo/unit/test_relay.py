"""The helper process between a program and a ZooKeeper server."""

from __future__ import annotations

import socket

import pytest

from qdo.keepalive import relay
from qdo.keepalive.relay import Encryption, Relay
from qdo.keepalive.vitals import Vitals, now
from tests.qdo.unit.zookeeper.test_handler import ANSWER, EVENT, GREETING, REQUEST, Hand
from tests.replacing import replace_in


def test_the_last_word_of_a_program_counts() -> None:
    """Data sent before the program closed reaches the server, so that it learns of the session's end."""
    ours, theirs = socket.socketpair()
    with theirs:
        theirs.settimeout(0.0)
        theirs.sendall(b"unread")
        ours.sendall(b"close the session")
        ours.close()
        assert Relay._receive(theirs) == b"close the session"
        assert Relay._receive(theirs) is None


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


def test_a_server_is_heard_from_the_instant_of_the_answered_request() -> None:
    """An answer counts from its request, however late it comes; an event of the server answers no request."""
    vitals, hand = Vitals.create(60.0), Hand()
    program, _ = socket.socketpair()
    ours, theirs = socket.socketpair()

    def ask() -> float:
        between._out[ours] += REQUEST
        between._send_pending(ours)
        return hand.now

    with replace_in(relay, now, hand), program, _, ours, theirs:
        between = Relay(vitals, program, ours)
        sent_at = ask()
        hand.now += 2
        assert between._record_answer(GREETING)
        assert vitals.last_heard == sent_at
        sent_at = ask()
        hand.now += 3
        assert between._record_answer(EVENT)
        assert between._record_answer(ANSWER)
        assert vitals.last_heard == sent_at
        hand.now += 1
        ask()
        hand.now += 2.1
        assert not between._record_answer(ANSWER)
        assert vitals.lapsed
    vitals.close()
