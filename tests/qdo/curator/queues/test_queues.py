"""The order of messages in the queues."""

from __future__ import annotations

import contextlib
import time

import pytest

from qdo.curator import consumption
from qdo.curator.backlog import now_ms
from qdo.curator.leader import LeaderElection
from qdo.errors import InvalidArgument, QueueStopped
from tests.qdo.curator.queues.queue_nodes import AT_ONCE, PATIENCE, Kazoo, Nodes, RecordedCalls, until
from tests.replacing import replace_in


def test_messages_come_in_order_and_leave_nothing(nodes: Nodes, client: Kazoo, heard: RecordedCalls) -> None:
    """Each message is handled once, in the order of puts, also within a node; then queue and locks are empty."""
    with nodes.opened(nodes.builder(client, heard).build_queue()) as queue:
        for number in range(20):
            assert queue.put(f"m{number}")
        assert queue.put_multi(["a", "", "ä"])
        assert queue.flush_puts(PATIENCE)
        assert heard.wait(23) == [*(f"m{number}" for number in range(20)), "a", "", "ä"]
        until(lambda: not queue.message_count())
    assert client.get_children(nodes.path) == []
    until(lambda: not client.get_children(nodes.lock_path))


def test_delays(nodes: Nodes, client: Kazoo, heard: RecordedCalls) -> None:
    """A message comes at its instant and not before, the earliest first, in whatever order they were put."""
    now = int(time.time() * 1000)
    with nodes.opened(nodes.builder(client).build_delay_queue()) as queue:
        queue.put("never", now + 10**9)
        queue.put("later", now + 1500)
        queue.put("second", now - 1)
        queue.put_multi(["next", "and next"], now)
        queue.put("first", 1)
    with nodes.opened(nodes.builder(client, heard).build_delay_queue()) as queue:
        assert heard.wait(5) == ["first", "second", "next", "and next", "later"]
        assert time.time() * 1000 >= now + 1500
        until(lambda: queue.message_count() == 1)


def test_messages_are_removed_by_id(nodes: Nodes, client: Kazoo, heard: RecordedCalls) -> None:
    """All messages of an id are removed, except one in hand; others keep their order."""
    heard.released.clear()
    with nodes.opened(nodes.builder(client, heard, put_in_background=False).build_id_queue()) as queue:
        for number, name in enumerate(["a/1", "b", "a/1", "a|1", "c"]):
            queue.put(f"m{number}", name)
        heard.wait(1)
        assert queue.remove("a/1") == 2
        assert queue.remove("a/1") == 0
        assert queue.remove("z") == 0
        heard.released.set()
        assert heard.wait(3) == ["m0", "m1", "m4"]


def test_without_a_lock_path_messages_are_removed_first(nodes: Nodes, client: Kazoo, heard: RecordedCalls) -> None:
    """Without a lock path, which must be chosen explicitly, messages are removed first, and lost on a failure."""
    with pytest.raises(InvalidArgument, match="delete_first=True"):
        nodes.builder(client, heard, lock_path=None)
    heard.released.clear()
    heard.fails = ValueError
    errors: list[Exception] = []
    builder = nodes.builder(client, heard, lock_path=None, delete_first=True, on_error=errors.append)
    with nodes.opened(builder.build_queue()) as queue:
        queue.put("m0")
        heard.wait(1)
        assert queue.message_count() == 0
        heard.released.set()
        until(lambda: errors)
        assert "m0" in str(errors[0])
        queue.put("m1")
        assert heard.wait(2) == ["m0", "m1"]


def test_a_queue_is_used_once(nodes: Nodes, client: Kazoo, heard: RecordedCalls) -> None:
    """Before its start and after its close a queue refuses puts, and it cannot be started twice."""
    queue = nodes.builder(client, heard, retry=AT_ONCE).build_queue()
    states = [queue.state]
    with pytest.raises(QueueStopped, match="was not started"):
        queue.put("m")
    queue.start()
    with pytest.raises(InvalidArgument, match="was started before"):
        queue.start()
    states.append(queue.state)
    assert queue.close(PATIENCE)
    assert [*states, queue.state] == ["latent", "started", "closed"]
    with pytest.raises(QueueStopped, match="is closed"):
        queue.put("m")
    with pytest.raises(InvalidArgument, match="was started before"):
        queue.start()
    assert queue.close()


def test_one_consumer_at_a_time_keeps_the_order(nodes: Nodes, client: Kazoo, heard: RecordedCalls) -> None:
    """Only the leading consumer takes messages; when it ends, the other one continues."""
    clients = (client, nodes.client())
    elections = [LeaderElection(each, f"{nodes.path}-leader") for each in clients]
    with contextlib.ExitStack() as stack:
        for election in elections:
            stack.callback(election.close)
            election.start()
            if election is elections[0]:
                assert election.wait(PATIENCE)
        second = RecordedCalls()
        first_queue = stack.enter_context(
            nodes.opened(nodes.builder(client, heard, election=elections[0]).build_queue())
        )
        stack.enter_context(nodes.opened(nodes.builder(clients[1], second, election=elections[1]).build_queue()))
        producer = stack.enter_context(nodes.opened(nodes.builder(client).build_queue()))
        for number in range(20):
            producer.put(f"{number}")
        assert heard.wait(20) == [f"{number}" for number in range(20)]
        first_queue.close(PATIENCE)
        for number in range(20, 40):
            producer.put(f"{number}")
        producer.flush_puts(PATIENCE)
        assert second == []
        elections[0].close()
        assert second.wait(20) == [f"{number}" for number in range(20, 40)]


def test_a_clock_that_is_set_forward_is_noticed(nodes: Nodes, client: Kazoo, heard: RecordedCalls) -> None:
    """A delayed message comes when the clock is set to its instant, and not only after the remaining time."""
    ahead = [0]
    with (
        replace_in(consumption, now_ms, lambda: now_ms() + ahead[0]),
        replace_in(consumption, consumption.MAX_CLOCK_INTERVAL, 0.1),
        nodes.opened(nodes.builder(client, heard).build_delay_queue()) as queue,
    ):
        queue.put("later", now_ms() + 10**9)
        queue.put("now", 1)
        assert heard.wait(1) == ["now"]
        ahead[0] = 10**9
        assert heard.wait(2) == ["now", "later"]
