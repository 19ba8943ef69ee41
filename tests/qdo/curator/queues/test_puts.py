"""Puts: in the background, in the foreground, and their limits."""

from __future__ import annotations

import pytest

from qdo.curator.nodes import encode
from qdo.curator.puts import MAX_PENDING
from qdo.errors import CoordinationLost, InvalidArgument, PutFailed, QdoError
from tests.harness.proxy import Proxy
from tests.qdo.curator.queues.queue_nodes import PATIENCE, Kazoo, Nodes, RecordedCalls, start, until


def test_a_broken_connection_fails_puts(nodes: Nodes, client: Kazoo, proxy: Proxy) -> None:
    """Puts without an answer are in the error of the flush, and can be repeated; the next flush succeeds."""
    errors: list[QdoError] = []
    queue = nodes.builder(nodes.client(proxy.address), on_error=errors.append).build_queue()
    with nodes.opened(queue):
        proxy.mute()
        queue.put("m0")
        queue.put_multi(["m1", "m2"])
        assert not queue.flush_puts(0.0)
        until(lambda: client.exists(nodes.path).children_count == 2)  # messages that were not sent would only wait
        proxy.cut()
        until(lambda: len(errors) == 2)
        proxy.resume()
        proxy.heal()
        with pytest.raises(PutFailed, match=r"2 puts failed.*may have been stored") as caught:
            queue.flush_puts(PATIENCE)
        assert (caught.value.messages, caught.value.puts) == (["m0", "m1", "m2"], 2)
        until(lambda: queue.state == "started")
        for message in caught.value.messages:
            queue.put(message)
        assert queue.flush_puts(PATIENCE)
        assert client.exists(nodes.path).children_count == 5


def test_a_put_at_once_waits_for_its_answer_and_not_for_ever(nodes: Nodes, proxy: Proxy) -> None:
    """A foreground put is stored when it returns; without an answer in time its outcome is unknown."""
    builder = nodes.builder(nodes.client(proxy.address), put_in_background=False, answer_timeout=0.5)
    queue = builder.build_queue()
    start(queue)
    proxy.mute()
    with pytest.raises(CoordinationLost, match=r"has not answered for 0\.5 s"):
        queue.put("m0")
    proxy.resume()
    assert queue.close(PATIENCE)


def test_a_message_that_is_too_large_is_refused(nodes: Nodes, client: Kazoo, heard: RecordedCalls) -> None:
    """The error says how many bytes fit; the largest message that fits is stored and handled."""
    with nodes.opened(nodes.builder(client, heard).build_queue()) as queue:
        with pytest.raises(InvalidArgument, match=r"too large for ZooKeeper, 1,0\d\d,\d\d\d fit.*jute.maxbuffer"):
            queue.put("x" * 1_048_575)
        largest = 0xFFFFF - 1024 - 8 * len(f"{nodes.path}/queue-") - 10
        queue.put("x" * largest)
        assert queue.flush_puts(PATIENCE)
        assert len(heard.wait(1)[0]) == largest
        with pytest.raises(InvalidArgument, match="too large"):
            queue.put("x" * (largest + 1))


def test_puts_under_way_are_bounded(nodes: Nodes, client: Kazoo, proxy: Proxy) -> None:
    """With the max number of puts unanswered a put gives up after its timeout; all others are stored in order."""
    with nodes.opened(nodes.builder(nodes.client(proxy.address)).build_queue()) as queue:
        proxy.mute()
        for number in range(MAX_PENDING):
            assert queue.put(f"{number}", timeout=0.0)
        assert not queue.put("more", timeout=0.0)
        proxy.resume()
        assert queue.put(f"{MAX_PENDING}", timeout=PATIENCE)
        assert queue.flush_puts(PATIENCE)
    names = sorted(client.get_children(nodes.path))
    assert len(names) == MAX_PENDING + 1
    for number in (0, 1, 500, MAX_PENDING):
        assert client.get(f"{nodes.path}/{names[number]}")[0] == encode([b"%d" % number])


def test_a_bounded_queue_makes_puts_wait(nodes: Nodes, client: Kazoo, heard: RecordedCalls) -> None:
    """Without room a put returns False after its timeout, and goes on when a consumer has made room."""
    queue = nodes.builder(client, max_items=3).build_queue()
    with nodes.opened(queue):
        for number in range(3):
            assert queue.put(f"m{number}", timeout=PATIENCE)
        assert not queue.put("m3", timeout=0.0)
        with nodes.opened(nodes.builder(client, heard).build_queue()):
            assert queue.put("m4", timeout=PATIENCE)
            assert heard.wait(4) == ["m0", "m1", "m2", "m4"]
