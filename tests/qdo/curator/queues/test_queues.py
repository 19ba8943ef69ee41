"""The order of messages in the queues."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import pytest
from kazoo.security import make_acl

from qdo.curator import consumption
from qdo.curator.backlog import now_ms
from qdo.curator.leader import LeaderElection
from qdo.curator.nodes import decode, encode
from qdo.errors import InvalidArgument, QueueStopped
from tests.qdo.curator.queues.queue_nodes import AT_ONCE, PATIENCE, Nodes, RecordedCalls, expire, until
from tests.replacing import replace_in


def test_messages_come_in_order_and_leave_nothing(nodes: Nodes, client: Any, heard: RecordedCalls) -> None:  # noqa: ANN401 - kazoo's
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


def test_nodes_are_those_of_curator(nodes: Nodes, client: Any) -> None:  # noqa: ANN401 - kazoo's
    """Names and bytes are those of Curator's queues."""
    with nodes.opened(nodes.builder(client, put_in_background=False).build_queue()) as queue:
        queue.put("m0")
        queue.put_multi(["a", "b"])
    assert sorted(client.get_children(nodes.path)) == ["queue-0000000000", "queue-0000000001"]
    assert client.get(f"{nodes.path}/queue-0000000000")[0].hex() == "000100010100000002" + b"m0".hex() + "02"
    assert decode(client.get(f"{nodes.path}/queue-0000000001")[0]) == [b"a", b"b"]


def test_priorities(nodes: Nodes, client: Any, heard: RecordedCalls) -> None:  # noqa: ANN401 - kazoo's
    """The smallest number comes first, and the oldest of one number."""
    with nodes.opened(nodes.builder(client).build_priority_queue()) as queue:
        for number, priority in enumerate([5, -1, 0, 5, -(2**31), 2**31 - 1, -1]):
            queue.put(f"{priority} {number}", priority)
        queue.put_multi(["x", "y"], 1)
    with nodes.opened(nodes.builder(client, heard).build_priority_queue()):
        assert heard.wait(9) == ["-2147483648 4", "-1 1", "-1 6", "0 2", "x", "y", "5 0", "5 3", "2147483647 5"]


def test_a_smaller_number_overtakes_those_that_wait(nodes: Nodes, client: Any, heard: RecordedCalls) -> None:  # noqa: ANN401 - kazoo's
    """A message with a smaller number comes before all waiting ones."""
    heard.released.clear()
    builder = nodes.builder(client, heard, put_in_background=False)
    with nodes.opened(builder.build_priority_queue(min_items_before_refresh=1)) as queue:
        queue.put_multi(["first"], 5)
        heard.wait(1)
        for number in range(5):
            queue.put(f"m{number}", 5)
        queue.put("urgent", 1)
        heard.released.set()
        assert heard.wait(7)[:2] == ["first", "urgent"]


def test_delays(nodes: Nodes, client: Any, heard: RecordedCalls) -> None:  # noqa: ANN401 - kazoo's
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


def test_messages_are_removed_by_id(nodes: Nodes, client: Any, heard: RecordedCalls) -> None:  # noqa: ANN401 - kazoo's
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


def test_several_consumers_share_a_queue(nodes: Nodes, heard: RecordedCalls) -> None:
    """Consumers in several sessions and threads handle each message once."""
    producer = nodes.builder(nodes.client()).build_queue()
    consumers = [nodes.builder(nodes.client(), heard, threads=2).build_queue() for _ in range(2)]
    with nodes.opened(producer), nodes.opened(consumers[0]), nodes.opened(consumers[1]):
        for number in range(100):
            producer.put(f"m{number}")
        assert sorted(heard.wait(100)) == sorted(f"m{number}" for number in range(100))
        until(lambda: not producer.message_count())
    assert len(heard) == 100


def test_without_a_lock_path_messages_are_removed_first(nodes: Nodes, client: Any, heard: RecordedCalls) -> None:  # noqa: ANN401 - kazoo's
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


def test_nodes_of_others_stay(nodes: Nodes, client: Any, heard: RecordedCalls) -> None:  # noqa: ANN401 - kazoo's
    """A node with another name is neither handled nor removed."""
    client.create(f"{nodes.path}/config", b"mine", makepath=True)
    with nodes.opened(nodes.builder(client, heard).build_queue()) as queue:
        queue.put("m0")
        assert heard.wait(1) == ["m0"]
        until(lambda: queue.message_count() == 1)
    assert client.get_children(nodes.path) == ["config"]


def test_a_queue_whose_node_was_removed_goes_on(nodes: Nodes, client: Any, heard: RecordedCalls) -> None:  # noqa: ANN401 - kazoo's
    """Consumers and producers recreate the node of a queue."""
    with nodes.opened(nodes.builder(client, heard, put_in_background=False).build_queue()) as queue:
        queue.put("m0")
        heard.wait(1)
        until(lambda: not queue.message_count())
        client.delete(nodes.path)
        queue.put("m1")
        assert heard.wait(2) == ["m0", "m1"]


def test_what_curator_put_back_is_taken(nodes: Nodes, client: Any, heard: RecordedCalls) -> None:  # noqa: ANN401 - kazoo's
    """Names that Curator put back without a priority are handled before all others."""
    client.ensure_path(nodes.path)
    for name in ("queue-100000005", "queue-0FFFFFFFF", "queue-"):
        client.create(f"{nodes.path}/{name}", encode([name.encode()]), sequence=True)
    with nodes.opened(nodes.builder(client, heard).build_priority_queue()):
        assert heard.wait(3) == ["queue-", "queue-0FFFFFFFF", "queue-100000005"]


def test_a_queue_is_used_once(nodes: Nodes, client: Any, heard: RecordedCalls) -> None:  # noqa: ANN401 - kazoo's
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


def test_a_client_has_to_be_connected(nodes: Nodes) -> None:
    """The error for a client without a connection says what to do."""
    client = nodes.client()
    client.stop()
    with pytest.raises(InvalidArgument, match=r"client\.start"):
        nodes.builder(client).build_queue().start()


def test_nodes_that_are_there_need_no_rights_above_them(nodes: Nodes, client: Any, heard: RecordedCalls) -> None:  # noqa: ANN401 - kazoo's
    """A queue with existing nodes is used by programs that may not create nodes above it."""
    for path in (nodes.path, nodes.lock_path):
        client.ensure_path(path)
    client.set_acls(nodes.path.rpartition("/")[0], [make_acl("world", "anyone", read=True)])
    with nodes.opened(nodes.builder(client, heard).build_queue()) as queue:
        queue.put("m0")
        assert heard.wait(1) == ["m0"]


def test_one_consumer_at_a_time_keeps_the_order(nodes: Nodes, client: Any, heard: RecordedCalls) -> None:  # noqa: ANN401 - kazoo's
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


def test_a_queue_of_a_session_that_was_lost_is_followed_by_another(
    nodes: Nodes,
    client: Any,  # noqa: ANN401 - kazoo's
    heard: RecordedCalls,
) -> None:
    """After a lost session the election is repeated by itself; the rebuilt queue takes messages once it leads."""
    election = LeaderElection(client, f"{nodes.path}-leader")
    builder = nodes.builder(client, heard, election=election)
    election.start()
    try:
        with nodes.opened(builder.build_queue()) as queue:
            queue.put("m0")
            assert heard.wait(1) == ["m0"]
            expire(client)
            until(lambda: queue.state == "lost")
        until(lambda: client.connected)
        with nodes.opened(builder.build_queue()) as queue:
            queue.put("m1")
            assert heard.wait(2) == ["m0", "m1"]
    finally:
        election.close()


def test_two_queues_on_one_client(nodes: Nodes, client: Any, heard: RecordedCalls) -> None:  # noqa: ANN401 - kazoo's
    """Consumers in one session leave each other's messages alone; closing one does not affect the other."""
    heard.released.clear()
    queues = [nodes.builder(client, heard).build_queue() for _ in range(2)]
    with nodes.opened(queues[0]), nodes.opened(queues[1]):
        queues[0].put_multi(["m0"])
        queues[1].put_multi(["m1"])
        assert sorted(heard.wait(2)) == ["m0", "m1"]
        assert not queues[0].close(0.0)
        assert len(client.get_children(nodes.lock_path)) == 4
        heard.released.set()
        assert queues[0].close(PATIENCE)
        assert queues[1].put("m2")
        assert heard.wait(3)[-1] == "m2"
        until(lambda: not queues[1].message_count())
    assert len(heard) == 3


def test_a_clock_that_is_set_forward_is_noticed(nodes: Nodes, client: Any, heard: RecordedCalls) -> None:  # noqa: ANN401 - kazoo's
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
