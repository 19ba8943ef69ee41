"""The queue without envelopes."""

from __future__ import annotations

import threading

import pytest

from qdo.curator import SimpleDistributedQueue
from tests.qdo.curator.queues.queue_nodes import PATIENCE, Kazoo, Nodes


def test_messages_are_taken_in_order(nodes: Nodes, client: Kazoo) -> None:
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


def test_a_message_is_waited_for(nodes: Nodes, client: Kazoo) -> None:
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
