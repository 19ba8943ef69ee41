"""The queue without envelopes."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from qdo.curator import SimpleDistributedQueue
from tests.qdo.curator.queues.queue_nodes import PATIENCE, Nodes, expire, until
from tests.servers.plugin import unique_name


def test_messages_are_taken_in_order(nodes: Nodes, client: Any) -> None:  # noqa: ANN401 - kazoo's
    """Bytes come back unchanged, the oldest first; peek removes nothing."""
    queue = SimpleDistributedQueue(client, nodes.path)
    assert queue.peek() is None
    assert queue.poll() is None
    for data in (b"a", b"", b"\0\xff"):
        queue.offer(data)
    assert sorted(client.get_children(nodes.path)) == ["qn-0000000000", "qn-0000000001", "qn-0000000002"]
    assert client.get(f"{nodes.path}/qn-0000000002")[0] == b"\0\xff"
    assert queue.peek() == queue.element() == b"a"
    assert [queue.remove(), queue.take(), queue.poll()] == [b"a", b"", b"\0\xff"]
    assert client.get_children(nodes.path) == []
    for call in (queue.element, queue.remove):
        with pytest.raises(LookupError, match=f"queue {nodes.path} is empty"):
            call()


def test_a_message_is_waited_for(nodes: Nodes, client: Any) -> None:  # noqa: ANN401 - kazoo's
    """A waiting take gets a message when it comes, or None after its timeout."""
    queue = SimpleDistributedQueue(client, nodes.path)
    assert queue.poll(0.1) is None
    taken: list[bytes | None] = []
    threads = [
        threading.Thread(target=lambda: taken.append(queue.poll(PATIENCE))),
        threading.Thread(target=lambda: taken.append(SimpleDistributedQueue(client, nodes.path).take())),
    ]
    for thread in threads:
        thread.start()
    other = SimpleDistributedQueue(nodes.client(), nodes.path)
    other.offer(b"a")
    other.offer(b"b")
    for thread in threads:
        thread.join(PATIENCE)
    assert sorted(filter(None, taken)) == [b"a", b"b"]


def test_each_message_is_taken_once(nodes: Nodes, client: Any) -> None:  # noqa: ANN401 - kazoo's
    """Several takers, of one object and of others, share the messages; foreign nodes stay."""
    queue = SimpleDistributedQueue(client, nodes.path)
    queue.offer(b"0")
    client.create(f"{nodes.path}/config")
    for number in range(1, 60):
        queue.offer(str(number).encode())
    taken: list[bytes] = []

    def take(own: SimpleDistributedQueue) -> None:
        while (data := own.poll()) is not None:
            taken.append(data)

    threads = [
        threading.Thread(target=take, args=(own,)) for own in (queue, queue, SimpleDistributedQueue(client, nodes.path))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert sorted(map(int, taken)) == list(range(60))
    assert client.get_children(nodes.path) == ["config"]


def test_a_list_is_used_up_before_another_is_made(nodes: Nodes, client: Any) -> None:  # noqa: ANN401 - kazoo's
    """Fifty messages cost one list, and another one that is empty."""
    lists = []

    class Counting:
        """A client that counts lists."""

        def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - kazoo's
            if name == "get_children_async":
                lists.append(name)
            return getattr(client, name)

    queue = SimpleDistributedQueue(Counting(), nodes.path)
    for number in range(50):
        queue.offer(str(number).encode())
    assert [queue.poll() for _ in range(51)] == [*(str(number).encode() for number in range(50)), None]
    assert len(lists) == 2


def test_a_queue_whose_node_was_removed_goes_on(nodes: Nodes, client: Any) -> None:  # noqa: ANN401 - kazoo's
    """ZooKeeper removes empty containers, which hold these queues; they are created again."""
    queue = SimpleDistributedQueue(client, nodes.path)
    queue.offer(b"a")
    queue.offer(b"b")
    assert queue.take() == b"a"
    client.delete(nodes.path, recursive=True)
    assert queue.poll() is None
    client.delete(nodes.path)
    queue.offer(b"c")
    until(lambda: queue.peek() == b"c")


def test_a_chroot_that_is_missing_is_made(nodes: Nodes) -> None:
    """A missing chroot is created, as kazoo does with the first path."""
    with pytest.warns(UserWarning, match="No chroot path exists"):
        client = nodes.client(f"{nodes.hosts}/{unique_name('chroot')}")
    queue = SimpleDistributedQueue(client, "/queues/simple")
    queue.offer(b"a")
    assert queue.take() == b"a"


def test_a_queue_outlives_the_session(nodes: Nodes, client: Any) -> None:  # noqa: ANN401 - kazoo's
    """A queue continues in the next session of its client; a waiting call gets messages that come then."""
    queue = SimpleDistributedQueue(client, nodes.path)
    taken: list[bytes | None] = []
    waiting = threading.Thread(target=lambda: taken.append(queue.poll(PATIENCE)))
    waiting.start()
    until(lambda: client.exists(nodes.path) is not None)
    queue.offer(b"a")
    waiting.join(PATIENCE)
    expire(client)
    queue.offer(b"b")
    assert [*taken, queue.take()] == [b"a", b"b"]
