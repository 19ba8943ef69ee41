"""Messages whose handler fails, and nodes that cannot be read."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest

from qdo.curator.nodes import encode
from qdo.errors import BadItem, ConsumerFailed, QdoError
from qdo.settings import Retry
from tests.qdo.curator.queues.queue_nodes import AT_ONCE, Kazoo, Nodes, RecordedCalls, until


class NotAgain(Retry, frozen=True, kw_only=True):
    """A retry pause that is longer than any test."""

    def after(self, attempt: int, kinds: Collection[str], draw: float) -> float | None:
        return 10.0**6


def names(client: Kazoo, path: str) -> list[str]:
    """Returns the names of the nodes, without consumers' fences."""
    return sorted(name for name in client.get_children(path) if name.startswith("queue-"))


@pytest.mark.parametrize(
    ("kind", "more", "prefix"),
    [
        ("queue", (), "queue-"),
        ("priority_queue", (-5,), "queue-0FFFFFFFB"),
        ("delay_queue", (1,), "queue-|00000001|"),
        ("id_queue", ("a",), "queue-|a|"),
    ],
)
def test_a_failed_message_is_put_back_under_the_same_prefix(
    nodes: Nodes, client: Kazoo, heard: RecordedCalls, kind: str, more: tuple[Any, ...], prefix: str
) -> None:
    """A failed message keeps priority, instant and id, and comes again until it is handled."""
    errors: list[QdoError] = []
    heard.fails = lambda _: ValueError("not yet") if len(heard) < 3 else None
    builder = nodes.builder(client, heard, retry=AT_ONCE, on_error=errors.append)
    with nodes.opened(getattr(builder, f"build_{kind}")()) as queue:
        queue.put("m0", *more)
        assert heard.wait(3) == ["m0"] * 3
        until(lambda: not queue.message_count())
        assert not names(client, nodes.lock_path)
        client.create(f"{nodes.path}/{prefix}", encode([b"last"]), sequence=True)
        heard.wait(4)
    assert [type(error) for error in errors] == [ConsumerFailed] * 2
    assert f"{nodes.path}/{prefix}0000000000 failed: ValueError: not yet" in str(errors[0])
    assert f"{nodes.path}/{prefix}0000000001 failed" in str(errors[1])


def test_a_failed_message_stays_locked_for_a_pause(nodes: Nodes, client: Kazoo, heard: RecordedCalls) -> None:
    """Others pass a failed message during its pause; when its consumer closes, another one gets it at once."""
    heard.fails = lambda item: ValueError("no") if item == "m0" else None
    other = RecordedCalls()
    consumer = nodes.builder(client, heard, retry=NotAgain(), put_in_background=False).build_queue()
    with nodes.opened(consumer) as queue:
        queue.put("m0")
        queue.put("m1")
        assert heard.wait(2) == ["m0", "m1"]
        until(lambda: names(client, nodes.path) == ["queue-0000000000"])
        assert names(client, nodes.lock_path) == ["queue-0000000000"]
        with nodes.opened(nodes.builder(client, other).build_queue()):
            queue.put("m2")
            until(lambda: "m2" in (*heard, *other))
            assert "m0" not in other
            queue.close()
            until(lambda: "m0" in other)
            until(lambda: not names(client, nodes.path))


def test_a_message_is_removed_after_so_many_attempts(nodes: Nodes, client: Kazoo, heard: RecordedCalls) -> None:
    """A message is removed after the configured number of failures, counted over all its nodes."""
    heard.fails = lambda item: ValueError("no") if item == "m0" else None
    retry = Retry(attempts=3, base=0.0, cap=0.0)
    with nodes.opened(nodes.builder(client, heard, retry=retry).build_queue()) as queue:
        queue.put("m0")
        heard.wait(3)
        until(lambda: not queue.message_count())
        queue.put("m1")
        assert heard.wait(4) == ["m0"] * 3 + ["m1"]


def test_a_failed_message_is_removed_if_that_is_wanted(nodes: Nodes, client: Kazoo, heard: RecordedCalls) -> None:
    """With ``delete`` the rest of the node is handled all the same."""
    heard.fails = lambda item: ValueError("no") if item == "b" else None
    with nodes.opened(nodes.builder(client, heard, error_mode="delete").build_queue()) as queue:
        queue.put_multi(["a", "b", "c"])
        assert heard.wait(3) == ["a", "b", "c"]
        until(lambda: not queue.message_count())
    assert len(heard) == 3


@pytest.mark.parametrize("delete_first", [False, True])
@pytest.mark.parametrize("data", [b"plain", encode([b"good", b"\xff"])])
def test_nodes_that_cannot_be_read_stay(
    nodes: Nodes,
    client: Kazoo,
    heard: RecordedCalls,
    data: bytes,
    delete_first: bool,  # noqa: FBT001 - a parameter
) -> None:
    """Unreadable nodes are reported once and left as they are, not locked; those behind them are handled."""
    errors: list[QdoError] = []
    client.create(f"{nodes.path}/queue-", data, sequence=True, makepath=True)
    lock_path = None if delete_first else nodes.lock_path
    builder = nodes.builder(client, heard, lock_path=lock_path, delete_first=delete_first, on_error=errors.append)
    with nodes.opened(builder.build_queue()) as queue:
        for number in range(3):
            queue.put(f"m{number}")
            heard.wait(number + 1)
        until(lambda: queue.message_count() == 1)
    assert heard == ["m0", "m1", "m2"]
    (error,) = errors
    assert isinstance(error, BadItem)
    assert error.data == data
    assert f"{nodes.path}/queue-0000000000 is left where it is" in str(error)
    assert client.get(f"{nodes.path}/queue-0000000000")[0] == data
    assert delete_first or client.get_children(nodes.lock_path) == []
