"""What a queue does when its connection breaks, its session ends or it is closed, and what becomes of its messages."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from qdo.curator.items import encode
from qdo.errors import CoordinationLost, InvalidArgument, QdoError, QueueStopped, SessionLost
from tests.harness.proxy import Proxy
from tests.qdo.curator.queues.scene import PATIENCE, Heard, Place, end_session, errors_into, expire, start, until


def put(client: Any, place: Place, *messages: str) -> None:  # noqa: ANN401 - kazoo's
    """Puts messages, a node each, as somebody else."""
    for message in messages:
        client.create(f"{place.path}/queue-", encode([message.encode()]), sequence=True, makepath=True)


def test_suspended_and_reconnected(place: Place, client: Any, proxy: Proxy, heard: Heard) -> None:  # noqa: ANN401 - kazoo's
    """Without connection no message is begun; the one in hand is removed once the connection is back; then all goes on.

    started → suspended → started
    """
    events: list[str] = []
    heard.gate.clear()
    put(client, place, "m0", "m1")
    queue = place.builder(place.client(proxy.address), heard, on_state=events.append).build_queue()
    with place.opened(queue):
        heard.wait(1)
        proxy.cut()
        until(lambda: queue.state == "suspended")
        heard.gate.set()
        put(client, place, "m2")
        assert client.exists(f"{place.path}/queue-0000000000")
        assert heard == ["m0"]
        proxy.heal()
        until(lambda: queue.state == "started")
        assert heard.wait(3) == ["m0", "m1", "m2"]
        until(lambda: not client.get_children(place.path))
    assert events == ["suspended", "reconnected"]


def test_lost(place: Place, client: Any, heard: Heard) -> None:  # noqa: ANN401 - kazoo's
    """When the session ends during a callback, the message stays and somebody else gets it, once; the queue is over.

    started → lost → closed
    """
    events: list[str] = []
    errors: list[QdoError] = []
    heard.gate.clear()
    put(client, place, "m0", "m1")
    own = place.client()
    queue = place.builder(own, heard, on_state=events.append, on_error=errors_into(errors)).build_queue()
    other = Heard()
    with place.opened(queue), place.opened(place.builder(client, other).build_queue()):
        heard.wait(1)
        assert other.wait(1) == ["m1"]
        expire(own)
        until(lambda: queue.state == "lost")
        assert other.wait(2) == ["m1", "m0"]
        put(client, place, "m2")
        assert other.wait(3) == ["m1", "m0", "m2"]
        heard.gate.set()
        until(lambda: any(isinstance(error, SessionLost) for error in errors))
        until(lambda: own.connected)
        with pytest.raises(QueueStopped, match="lost its session"):
            queue.put("m3")
        until(lambda: not client.get_children(place.path))
        assert queue.close(PATIENCE)
        assert queue.state == "closed"
    assert heard == ["m0"]
    assert events[-1] == "lost"
    assert client.get_children(place.lock_path) == []


def test_nothing_is_removed_under_a_later_session(place: Place, client: Any, heard: Heard) -> None:  # noqa: ANN401 - kazoo's
    """A message that was in hand when the session ended is not removed, even if its lock is somebody else's by then."""
    errors: list[QdoError] = []
    heard.gate.clear()
    put(client, place, "m0")
    own = place.client()
    queue = place.builder(own, heard, on_error=errors_into(errors)).build_queue()
    with place.opened(queue):
        heard.wait(1)
        expire(own)
        until(lambda: queue.state == "lost" and own.connected)
        client.create(f"{place.lock_path}/queue-0000000000", b"another's", ephemeral=True)
        heard.gate.set()
        until(lambda: errors)
    assert client.get_children(place.path) == ["queue-0000000000"]
    assert client.get_children(place.lock_path) == ["queue-0000000000"]


def test_suspended_and_lost(place: Place, client: Any, proxy: Proxy, heard: Heard) -> None:  # noqa: ANN401 - kazoo's
    """A session that ended while there was no connection is over once the servers can say so.

    suspended → lost
    """
    own = place.client(proxy.address)
    queue = place.builder(own, heard).build_queue()
    with place.opened(queue):
        identity = own.client_id
        proxy.cut()
        until(lambda: queue.state == "suspended")
        end_session(place.hosts, identity)
        proxy.heal()
        until(lambda: queue.state == "lost")
        put(client, place, "m0")
        assert heard == []


def test_closed_while_a_message_is_in_hand(place: Place, client: Any, heard: Heard) -> None:  # noqa: ANN401 - kazoo's
    """No further message is begun; the one in hand is finished, and only then nothing is left of the consumer.

    started → closed
    """
    heard.gate.clear()
    put(client, place, "m0", "m1")
    queue = place.builder(client, heard).build_queue()
    with place.opened(queue):
        heard.wait(1)
        assert not queue.close(0.0)
        assert queue.state == "closed"
        assert len(client.get_children(place.lock_path)) == 2
        heard.gate.set()
        until(lambda: not client.get_children(place.lock_path))
    assert client.get_children(place.path) == ["queue-0000000001"]
    assert heard == ["m0"]


def test_a_consumer_may_close_its_queue(place: Place, client: Any) -> None:  # noqa: ANN401 - kazoo's
    """Its message is finished afterwards."""
    put(client, place, "m0", "m1")
    closed = threading.Event()

    def consume(_: str) -> None:
        assert queue.close(PATIENCE)
        closed.set()

    queue = place.builder(client, consume).build_queue()  # type: ignore[arg-type]
    queue.start()
    assert closed.wait(PATIENCE)
    until(lambda: client.get_children(place.path) == ["queue-0000000001"])
    until(lambda: not client.get_children(place.lock_path))


def test_closed_and_lost(place: Place, client: Any, heard: Heard) -> None:  # noqa: ANN401 - kazoo's
    """A session that ends after the close: what is in hand stays in the queue for somebody else.

    closed → closed
    """
    errors: list[QdoError] = []
    heard.gate.clear()
    put(client, place, "m0")
    own = place.client()
    queue = place.builder(own, heard, on_error=errors.append).build_queue()
    with place.opened(queue):
        heard.wait(1)
        assert not queue.close(0.0)
        expire(own)
        heard.gate.set()
        assert queue.close(PATIENCE)
    assert queue.state == "closed"
    assert [type(error) for error in errors] == [SessionLost]
    assert client.get_children(place.path) == ["queue-0000000000"]
    assert client.get_children(place.lock_path) == []


def test_a_queue_that_is_closed_again_waits_again(place: Place, client: Any, heard: Heard) -> None:  # noqa: ANN401 - kazoo's
    """What was not finished in the time of the first call is waited for by the next one."""
    heard.gate.clear()
    put(client, place, "m0")
    queue = place.builder(client, heard).build_queue()
    with place.opened(queue):
        heard.wait(1)
        assert not queue.close(0.0)
        assert not queue.close(0.0)
        heard.gate.set()
        assert queue.close(PATIENCE)
        assert client.get_children(place.path) == []


def test_consumers_that_close_their_queue_do_not_wait_for_each_other(place: Place, client: Any) -> None:  # noqa: ANN401 - kazoo's
    """Two of them, in two threads, come to an end at once; what has the queue from outside waits for both."""
    put(client, place, "m0", "m1")
    both = threading.Barrier(2)
    ended: list[bool] = []

    def consume(_: str) -> None:
        both.wait(PATIENCE)
        ended.append(queue.close(10**6))

    queue = place.builder(client, consume, threads=2).build_queue()  # type: ignore[arg-type]
    queue.start()
    until(lambda: queue.state == "closed")
    assert queue.close(PATIENCE)
    assert ended == [True, True]
    assert client.get_children(place.path) == []


def test_a_start_that_failed_can_be_made_again(place: Place, proxy: Proxy, heard: Heard) -> None:
    """Nothing of the failed one stays; of two that start a queue at once one is told that it was started before.

    latent → latent → started
    """
    own = place.client(proxy.address)
    queue = place.builder(own, heard, answer_timeout=0.2).build_queue()
    proxy.mute()
    with pytest.raises(CoordinationLost):
        queue.start()
    states: list[str] = [queue.state]
    proxy.resume()
    until(lambda: own.connected)
    told: list[InvalidArgument] = []

    def one_of_two() -> None:
        try:
            start(queue)
        except InvalidArgument as error:
            told.append(error)

    threads = [threading.Thread(target=one_of_two) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert len(told) == 1
    assert [*states, queue.state] == ["latent", "started"]
    put(own, place, "m0")
    assert heard.wait(1) == ["m0"]
    assert queue.close(PATIENCE)


def test_a_dead_holders_message_is_taken(place: Place, client: Any, heard: Heard) -> None:  # noqa: ANN401 - kazoo's
    """When a lock vanishes with its session, the message is taken although nothing changes in the queue."""
    put(client, place, "m0")
    holder = place.client()
    holder.create(f"{place.lock_path}/queue-0000000000", b"", ephemeral=True, makepath=True)
    with place.opened(place.builder(client, heard).build_queue()) as queue:
        put(client, place, "m1")
        assert heard.wait(1) == ["m1"]
        until(lambda: queue.message_count() == 1)
        expire(holder)
        assert heard.wait(2) == ["m1", "m0"]


def test_a_lock_whose_answer_was_lost_is_the_consumers_own(place: Place, client: Any, heard: Heard) -> None:  # noqa: ANN401 - kazoo's
    """A consumer that finds its own lock goes on as the holder, and does not wait for itself."""
    put(client, place, "m0")
    queue = place.builder(client, heard).build_queue()
    client.create(f"{place.lock_path}/queue-0000000000", queue._token.encode(), ephemeral=True, makepath=True)
    with place.opened(queue):
        assert heard.wait(1) == ["m0"]
        until(lambda: not client.get_children(place.path))
    until(lambda: not client.get_children(place.lock_path))


def test_a_consumer_without_its_fence_is_lost(place: Place, client: Any, heard: Heard) -> None:  # noqa: ANN401 - kazoo's
    """If somebody removes what stands for its session, a consumer ends, and takes nothing that it could not finish."""
    queue = place.builder(client, heard).build_queue()
    with place.opened(queue):
        client.delete(f"{place.lock_path}/{queue._token}")
        put(client, place, "m0")
        until(lambda: queue.state == "lost")
    assert heard == []
    assert client.get_children(place.lock_path) == []
