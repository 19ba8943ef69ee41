"""Options of a queue's builder."""

from __future__ import annotations

import doctest
from typing import Any

import pytest

from qdo.curator import BYTES, TEXT, QueueBuilder, Serializer, SimpleDistributedQueue, options
from qdo.curator.leader import LeaderElection
from qdo.curator.nodes import MAX_REQUEST_OVERHEAD_BYTES, max_node_bytes
from qdo.errors import InvalidArgument


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"path": "orders"}, "path is the path of a node such as /queues/orders, not 'orders'"),
        ({"path": "/a/"}, "not '/a/'"),
        ({"path": "/"}, "not '/'"),
        ({"path": "/a/../b"}, "not '/a/../b'"),
        ({"path": "/a\n"}, "path is the path"),
        ({"path": "/zookeeper/q"}, "belongs to the servers"),
        ({"lock_path": "locks"}, "lock_path is the path"),
        ({"lock_path": "/q"}, "lock_path has to be another node than path"),
        ({"delete_first": True}, "leave one of them out"),
        ({"lock_path": None}, "needs a lock_path.*delete_first=True"),
        ({"election": LeaderElection(object(), "/l")}, "election at /l has another client than the queue /q"),
        ({"consumer": "print"}, "consumer is a function"),
        ({"error_mode": "drop"}, "error_mode is requeue or delete, not 'drop'"),
        ({"threads": 0}, "threads is a number from 1 to 64, not 0"),
        ({"threads": 65}, "not 65"),
        ({"max_items": 0}, "max_items is a number above 0"),
        ({"node_limit": 100}, "node_limit is a number of bytes from 16384 up"),
        ({"final_flush": -1.0}, "final_flush is a number of seconds"),
        ({"answer_timeout": float("nan")}, "answer_timeout is a number of seconds"),
    ],
)
def test_what_cannot_be_is_refused(wrong: dict[str, Any], says: str) -> None:
    """The error names the option, its value and what is allowed."""
    options = {"client": None, "consumer": print, "serializer": TEXT, "path": "/q", "lock_path": "/locks"} | wrong
    with pytest.raises(InvalidArgument, match=says):
        QueueBuilder(**options)


def test_a_bounded_queue_is_put_into_at_once() -> None:
    """The defaults are Curator's, unless documented otherwise."""
    assert QueueBuilder(None, None, TEXT, "/q").in_background
    assert not QueueBuilder(None, None, TEXT, "/q", max_items=5).in_background
    assert QueueBuilder(None, None, TEXT, "/q", max_items=5, put_in_background=True).in_background
    assert not QueueBuilder(None, None, TEXT, "/q", put_in_background=False).in_background


@pytest.mark.parametrize(
    ("serializer", "messages", "says"),
    [
        (TEXT, [5], "a message, int, cannot be serialized"),
        (BYTES, ["text"], "serialized as str; a serializer returns bytes"),
        (BYTES, [], "no messages were given to put"),
        (BYTES, [b"x" * 600, b"x" * 600], "a node of 1,215 bytes is too large for ZooKeeper, 1,000 fit"),
    ],
)
def test_what_cannot_be_written_is_refused(serializer: Serializer[Any], messages: list[Any], says: str) -> None:
    """The error names the messages and the reason."""
    with pytest.raises(InvalidArgument, match=says):
        serializer.write(messages, 1000)


def test_a_message_of_the_simple_queue_has_to_fit() -> None:
    """The limit is that of the servers, less the envelope of the message."""
    queue = SimpleDistributedQueue(None, "/q", node_limit=20_000)
    with pytest.raises(InvalidArgument, match="a message of 20,000 bytes is too large for ZooKeeper, 18,928 fit"):
        queue.offer(b"x" * 20_000)
    assert max_node_bytes(20_000, "/q", "qn-") == 20_000 - MAX_REQUEST_OVERHEAD_BYTES - 8 * len("/q/qn-")
    with pytest.raises(InvalidArgument, match="node_limit"):
        SimpleDistributedQueue(None, "/q", node_limit=0)


def test_the_examples_are_true() -> None:
    """The docstrings' examples print what they show."""
    assert doctest.testmod(options).failed == 0
