"""Puts: in the background, in the foreground, and what bounds them."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from qdo.curator.lifecycle import Lifecycle
from qdo.curator.puts import MOST_FAILURES, MOST_PENDING, Puts
from qdo.errors import CoordinationLost, InvalidArgument, PutFailed, QdoError
from tests.qdo.curator.queues.scene import PATIENCE, Heard, Place, start, until
from tests.qdo.zookeeper.proxy import Proxy


def test_a_broken_connection_fails_puts(place: Place, client: Any, proxy: Proxy) -> None:  # noqa: ANN401 - kazoo's
    """Puts whose answers did not come are in the error of the flush, and can be put again; the next flush is good."""
    errors: list[QdoError] = []
    queue = place.builder(place.client(proxy.address), on_error=errors.append).build_queue()
    with place.opened(queue):
        proxy.mute()
        queue.put("m0")
        queue.put_multi(["m1", "m2"])
        assert not queue.flush_puts(0.0)
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
        assert client.exists(place.path).children_count in {3, 4, 5}


def test_a_put_at_once_waits_for_its_answer_and_not_for_ever(place: Place, proxy: Proxy) -> None:
    """It is stored when the call returns; without an answer in time its end is not known."""
    builder = place.builder(place.client(proxy.address), put_in_background=False, answer_timeout=0.5)
    queue = builder.build_queue()
    start(queue)
    proxy.mute()
    with pytest.raises(CoordinationLost, match=r"has not answered for 0\.5 s"):
        queue.put("m0")
    proxy.resume()
    assert queue.close(PATIENCE)


def test_a_message_that_is_too_large_is_refused(place: Place, client: Any, heard: Heard) -> None:  # noqa: ANN401 - kazoo's
    """The error says how many bytes fit; the largest message that fits is stored and handled."""
    with place.opened(place.builder(client, heard).build_queue()) as queue:
        with pytest.raises(InvalidArgument, match=r"too large for ZooKeeper, 1,0\d\d,\d\d\d fit.*jute.maxbuffer"):
            queue.put("x" * 1_048_575)
        largest = 0xFFFFF - 1024 - 8 * len(f"{place.path}/queue-") - 10
        queue.put("x" * largest)
        assert queue.flush_puts(PATIENCE)
        assert len(heard.wait(1)[0]) == largest
        with pytest.raises(InvalidArgument, match="too large"):
            queue.put("x" * (largest + 1))


def test_a_bounded_queue_makes_puts_wait(place: Place, client: Any, heard: Heard) -> None:  # noqa: ANN401 - kazoo's
    """Without room a put returns False after its time, and goes on when a consumer has made room."""
    queue = place.builder(client, max_items=3).build_queue()
    with place.opened(queue):
        for number in range(3):
            assert queue.put(f"m{number}", timeout=PATIENCE)
        assert not queue.put("m3", timeout=0.0)
        assert queue.message_count() == 3
        with place.opened(place.builder(client, heard).build_queue()):
            assert queue.put("m4", timeout=PATIENCE)
            assert heard.wait(4) == ["m0", "m1", "m2", "m4"]


class Silent:
    """A client of ZooKeeper that never answers, and keeps what is to be called."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def apply(self, *change: Any) -> Any:  # noqa: ANN401 - as the original
        """Asks."""
        self.asked.append(change)
        return self

    def then(self, call: Any) -> None:  # noqa: ANN401 - as the original
        """Keeps the callback."""
        self.asked[-1] = call

    def get(self, timeout: float) -> Any:  # noqa: ANN401 - as the original
        """Answers what failed."""
        raise CoordinationLost("broken")


@pytest.fixture
def silent() -> Silent:
    """Servers that do not answer."""
    return Silent()


@pytest.fixture
def puts(silent: Silent) -> Puts:
    """Puts in the background to servers that do not answer."""
    lifecycle = Lifecycle("/q")
    lifecycle.happened("start")
    return Puts(lifecycle, silent, "/q", background=True, most=None, patience=1.0, report=lambda _: None)  # type: ignore[arg-type]


def test_puts_under_way_are_bounded(puts: Puts, silent: Silent) -> None:
    """When so many are not answered, or so many bytes, a put waits, and does not go when its time is over."""
    for number in range(MOST_PENDING):
        assert puts.put("queue-", [number], b"", 0.0)
    assert not puts.put("queue-", ["more"], b"", 0.0)
    assert len(silent.asked) == MOST_PENDING
    waiting = threading.Thread(target=puts.put, args=("queue-", ["more"], b"", None))
    waiting.start()
    silent.asked[0](silent)
    waiting.join(PATIENCE)
    assert not waiting.is_alive()
    assert len(silent.asked) == MOST_PENDING + 1


def test_bytes_under_way_are_bounded(puts: Puts) -> None:
    """A message of any size goes alone; further ones wait."""
    assert puts.put("queue-", ["large"], bytes(64 * 1024 * 1024), 0.0)
    assert not puts.put("queue-", ["small"], b"x", 0.0)


def test_failures_are_kept_up_to_a_bound(puts: Puts, silent: Silent) -> None:
    """Of more failed puts than that only the number is kept."""
    for number in range(MOST_FAILURES + 5):
        puts.put("queue-", [number], b"", 0.0)
    for call in list(silent.asked):
        call(silent)
    with pytest.raises(PutFailed, match="105 puts failed") as caught:
        puts.flush(0.0)
    assert caught.value.messages == list(range(MOST_FAILURES))
    assert caught.value.puts == MOST_FAILURES + 5
    assert puts.flush(0.0)
