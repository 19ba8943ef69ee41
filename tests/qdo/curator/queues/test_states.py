"""What happens to a queue and its messages when the connection breaks, the session ends or the queue is closed."""

from __future__ import annotations

import pytest

from qdo.curator.nodes import encode
from qdo.errors import CoordinationLost, QdoError, QueueStopped, SessionLost
from tests.harness.proxy import Proxy
from tests.qdo.curator.queues.queue_nodes import PATIENCE, Kazoo, Nodes, RecordedCalls, expire, start, until


def put(client: Kazoo, nodes: Nodes, *messages: str) -> None:
    for message in messages:
        client.create(f"{nodes.path}/queue-", encode([message.encode()]), sequence=True, makepath=True)


def test_suspended_and_reconnected(nodes: Nodes, client: Kazoo, proxy: Proxy, heard: RecordedCalls) -> None:
    """Without a connection no message is begun; the one in hand is removed after the reconnect; others follow.

    started → suspended → started
    """
    events: list[str] = []
    heard.released.clear()
    put(client, nodes, "m0", "m1")
    queue = nodes.builder(nodes.client(proxy.address), heard, on_state=events.append).build_queue()
    with nodes.opened(queue):
        heard.wait(1)
        proxy.cut()
        until(lambda: queue.state == "suspended")
        heard.released.set()
        put(client, nodes, "m2")
        assert client.exists(f"{nodes.path}/queue-0000000000")
        assert heard == ["m0"]
        proxy.heal()
        until(lambda: queue.state == "started")
        assert heard.wait(3) == ["m0", "m1", "m2"]
        until(lambda: not client.get_children(nodes.path))
    assert events == ["suspended", "reconnected"]


def test_lost(nodes: Nodes, client: Kazoo, heard: RecordedCalls) -> None:
    """When the session ends during a callback, the message stays and another consumer gets it once; the queue ends.

    started → lost → closed
    """
    events: list[str] = []
    errors: list[QdoError] = []
    heard.released.clear()
    put(client, nodes, "m0", "m1")
    own = nodes.client()
    queue = nodes.builder(own, heard, on_state=events.append, on_error=errors.append).build_queue()
    other = RecordedCalls()
    with nodes.opened(queue), nodes.opened(nodes.builder(client, other).build_queue()):
        heard.wait(1)
        assert other.wait(1) == ["m1"]
        expire(own)
        until(lambda: queue.state == "lost")
        assert other.wait(2) == ["m1", "m0"]
        put(client, nodes, "m2")
        assert other.wait(3) == ["m1", "m0", "m2"]
        heard.released.set()
        until(lambda: any(isinstance(error, SessionLost) for error in errors))
        until(lambda: own.connected)
        with pytest.raises(QueueStopped, match="lost its session"):
            queue.put("m3")
        until(lambda: not client.get_children(nodes.path))
        assert queue.close(PATIENCE)
        assert queue.state == "closed"
    assert heard == ["m0"]
    assert events[-1] == "lost"
    assert client.get_children(nodes.lock_path) == []


def test_nothing_is_removed_under_a_later_session(nodes: Nodes, client: Kazoo, heard: RecordedCalls) -> None:
    """A message in hand is not removed after its session ended, even if another session holds its lock by then."""
    errors: list[QdoError] = []
    heard.released.clear()
    put(client, nodes, "m0")
    own = nodes.client()
    queue = nodes.builder(own, heard, on_error=errors.append).build_queue()
    with nodes.opened(queue):
        heard.wait(1)
        expire(own)
        until(lambda: queue.state == "lost" and own.connected)
        client.create(f"{nodes.lock_path}/queue-0000000000", b"another's", ephemeral=True)
        heard.released.set()
        until(lambda: errors)
    assert client.get_children(nodes.path) == ["queue-0000000000"]
    assert client.get_children(nodes.lock_path) == ["queue-0000000000"]


def test_closed_while_a_message_is_in_hand(nodes: Nodes, client: Kazoo, heard: RecordedCalls) -> None:
    """After a close no message is begun; the one in hand is finished, and then the consumer's nodes are gone.

    started → closed
    """
    heard.released.clear()
    put(client, nodes, "m0", "m1")
    queue = nodes.builder(client, heard).build_queue()
    with nodes.opened(queue):
        heard.wait(1)
        assert not queue.close(0.0)
        assert queue.state == "closed"
        assert len(client.get_children(nodes.lock_path)) == 2
        heard.released.set()
        until(lambda: not client.get_children(nodes.lock_path))
    assert client.get_children(nodes.path) == ["queue-0000000001"]
    assert heard == ["m0"]


def test_a_dead_holders_message_is_taken(nodes: Nodes, client: Kazoo, heard: RecordedCalls) -> None:
    """When a lock vanishes with its session, the message is taken although nothing changes in the queue."""
    put(client, nodes, "m0")
    holder = nodes.client()
    holder.create(f"{nodes.lock_path}/queue-0000000000", b"", ephemeral=True, makepath=True)
    with nodes.opened(nodes.builder(client, heard).build_queue()) as queue:
        put(client, nodes, "m1")
        assert heard.wait(1) == ["m1"]
        until(lambda: queue.message_count() == 1)
        expire(holder)
        assert heard.wait(2) == ["m1", "m0"]


def test_a_consumer_without_its_fence_is_lost(nodes: Nodes, client: Kazoo, heard: RecordedCalls) -> None:
    """If the fence of its session is removed, a consumer ends, and takes no message that it could not finish."""
    queue = nodes.builder(client, heard).build_queue()
    with nodes.opened(queue):
        (fence,) = client.get_children(nodes.lock_path)
        client.delete(f"{nodes.lock_path}/{fence}")
        put(client, nodes, "m0")
        until(lambda: queue.state == "lost")
    assert heard == []
    assert client.get_children(nodes.lock_path) == []


def test_a_start_that_failed_can_be_made_again(nodes: Nodes, proxy: Proxy, heard: RecordedCalls) -> None:
    """A failed start leaves nothing and can be repeated.

    latent → latent → started
    """
    own = nodes.client(proxy.address)
    queue = nodes.builder(own, heard, answer_timeout=0.2).build_queue()
    proxy.mute()
    with pytest.raises(CoordinationLost):
        queue.start()
    assert queue.state == "latent"
    proxy.resume()
    until(lambda: own.connected)
    start(queue)
    put(own, nodes, "m0")
    assert heard.wait(1) == ["m0"]
    assert queue.close(PATIENCE)
