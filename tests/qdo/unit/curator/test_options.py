"""Options of a queue's builder."""

from __future__ import annotations

import doctest
import inspect
from typing import Any

import pytest

import qdo.curator
from qdo.curator import BYTES, TEXT, QueueBuilder, Serializer, SimpleDistributedQueue, options
from qdo.curator.leader import LeaderElection
from qdo.curator.nodes import MAX_REQUEST_OVERHEAD_BYTES, encode, max_node_bytes
from qdo.errors import BadItem, InvalidArgument


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


def test_a_refresh_is_no_negative_number() -> None:
    """The argument of a build method is checked as well."""
    with pytest.raises(InvalidArgument, match="min_items_before_refresh"):
        QueueBuilder(None, None, TEXT, "/q").build_priority_queue(-1)


def test_a_bounded_queue_is_put_into_at_once() -> None:
    """The defaults are Curator's, unless documented otherwise."""
    assert QueueBuilder(None, None, TEXT, "/q").in_background
    assert not QueueBuilder(None, None, TEXT, "/q", max_items=5).in_background
    assert QueueBuilder(None, None, TEXT, "/q", max_items=5, put_in_background=True).in_background
    assert not QueueBuilder(None, None, TEXT, "/q", put_in_background=False).in_background


def test_messages_become_bytes_and_back() -> None:
    """Texts are written in UTF-8, bytes as they are."""
    assert TEXT.read(TEXT.write(["ä", ""], 1000)) == ["ä", ""]
    assert BYTES.write([b"m0"], 1000) == encode([b"m0"])


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


def test_messages_without_end_are_not_read_to_their_end() -> None:
    """Messages that are too large are refused as soon as that is certain."""
    with pytest.raises(InvalidArgument, match="too large"):
        BYTES.write(iter(lambda: b"more", b""), 1000)


def test_what_cannot_be_read_is_no_item() -> None:
    """Bytes that the serializer refuses are kept, like those of another format."""
    data = encode([b"\xff"])
    with pytest.raises(BadItem, match="UnicodeDecodeError") as caught:
        TEXT.read(data)
    assert caught.value.data == data


def test_a_serializer_that_breaks_ends_no_thread() -> None:
    """A node is kept as unreadable if its serializer raises what is not an ``Exception``, as native code may."""

    def panic(_: bytes) -> str:
        raise BaseException("panicked")  # noqa: TRY002 - as native code does

    with pytest.raises(BadItem, match="BaseException: panicked"):
        Serializer(str.encode, panic).read(encode([b"m"]))


def test_a_message_of_the_simple_queue_has_to_fit() -> None:
    """The limit is that of the servers, less the envelope of the message."""
    queue = SimpleDistributedQueue(None, "/q", node_limit=20_000)
    with pytest.raises(InvalidArgument, match="a message of 20,000 bytes is too large for ZooKeeper, 18,928 fit"):
        queue.offer(b"x" * 20_000)
    assert max_node_bytes(20_000, "/q", "qn-") == 20_000 - MAX_REQUEST_OVERHEAD_BYTES - 8 * len("/q/qn-")
    with pytest.raises(InvalidArgument, match="node_limit"):
        SimpleDistributedQueue(None, "/q", node_limit=0)


def test_the_public_names() -> None:
    """Every public name exists and has a docstring; each class shows an example."""
    for name in qdo.curator.__all__:
        thing = getattr(qdo.curator, name)
        assert thing.__doc__
        assert not inspect.isclass(thing) or "::\n" in thing.__doc__ or ">>>" in thing.__doc__
    with pytest.raises(AttributeError, match="QueueSharder"):
        qdo.curator.QueueSharder  # noqa: B018 - the access is the test


def test_the_examples_are_true() -> None:
    """The docstrings' examples print what they show."""
    assert doctest.testmod(options).failed == 0
