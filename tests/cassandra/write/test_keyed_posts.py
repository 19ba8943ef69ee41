"""Posts with idempotency keys in real Cassandra: whatever fails, stops or comes late, the messages are there once."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future

import pytest

from queuey.errors import KeyInUse, StoreUnavailable
from queuey.messages import PostKey, PostResult, Queue
from queuey.storage.cassandra.store import keyed_posts
from tests.cassandra.interposed import ALWAYS, DELETES, INSERTS, PATIENCE, Gate
from tests.cassandra.scene import TTL, D, Process, Reader, S, Scene, W, message
from tests.contract.samples import begun_once

CHANGES = (keyed_posts._STATEMENTS.change,)
KEY = PostKey("key", b"content", TTL)


def begun(process: Process, queue: Queue) -> Future[PostResult | None]:
    """Begins a post with the key."""
    return begun_once(process.store, queue, [message("a"), message("b")], KEY)


def posted(process: Process, queue: Queue) -> PostResult:
    """Posts with the key."""
    result = begun(process, queue).result(PATIENCE)
    assert result is not None
    return result


def shown_once(scene: Scene, process: Process, queue: Queue, result: PostResult) -> bool:
    """Whether a reader who comes when all is settled is shown the messages at these places and nothing else."""
    scene.world.advance(D + S)
    reader = Reader(process, queue)
    reader.go_on()
    return (reader.seen, reader.bodies) == ([position for _, position in result.locations], ["a", "b"])


@pytest.fixture
def two(scene: Scene) -> tuple[Process, Process, Queue]:
    """Two processes, and a queue that both know."""
    first, second = scene.start(), scene.start()
    queue = scene.queue(first, ttl=TTL)
    assert second.store.queue(queue.application, queue.name) == queue
    return first, second, queue


def stop_before_all(process: Process) -> Gate:
    """It has made ids, and nobody knows of them yet."""
    return process.wire.hold(CHANGES)


def stop_before_writing(process: Process) -> Gate:
    """It has entered the ids, and what it writes arrives late."""
    return process.wire.hold(INSERTS)


def stop_after_writing(process: Process) -> Gate:
    """It has written the messages and not heard of it."""
    return process.wire.hold(INSERTS, answered=True)


def stop_before_confirming(process: Process) -> Gate:
    """It knows that the messages are written, and nobody else does."""
    process.wire.hold(CHANGES).open()
    return process.wire.hold(CHANGES)


def stop_after_confirming(process: Process) -> Gate:
    """It has confirmed the messages and not heard of it."""
    process.wire.hold(CHANGES).open()
    return process.wire.hold(CHANGES, answered=True)


STOPS = (stop_before_all, stop_before_writing, stop_after_writing, stop_before_confirming, stop_after_confirming)


@pytest.mark.parametrize("stop", STOPS, ids=lambda stop: str(stop.__name__))
def test_another_process_goes_on(
    scene: Scene, two: tuple[Process, Process, Queue], stop: Callable[[Process], Gate]
) -> None:
    """While a post may go on others are told so; later another takes over, and the first finds what that has stored."""
    first, second, queue = two
    gate = stop(first)
    stopped = begun(first, queue)
    gate.reached()
    while isinstance(error := begun(second, queue).exception(PATIENCE), KeyInUse):
        assert 0 < error.retry_after <= W + 1
        scene.world.advance(W / 4)
    result = posted(second, queue)
    gate.open()
    if stop is stop_after_confirming:
        assert stopped.result(PATIENCE) == PostResult(result.locations, replayed=False)
    else:
        assert stopped.result(PATIENCE) == PostResult(result.locations, replayed=True)
    for process in (first, second):
        assert posted(process, queue) == PostResult(result.locations, replayed=True)
    assert shown_once(scene, second, queue, result)


@pytest.mark.parametrize("lost", [1, 2, 3, 4])
def test_lost_answers(scene: Scene, two: tuple[Process, Process, Queue], lost: int) -> None:
    """Changes of the key whose answers are lost are sent again, and their own traces are known again."""
    first, second, queue = two
    first.wire.lose(CHANGES, lost)
    result = posted(first, queue)
    assert not result.replayed
    assert posted(second, queue) == PostResult(result.locations, replayed=True)
    assert shown_once(scene, second, queue, result)


def test_a_change_that_stays_in_doubt(scene: Scene, two: tuple[Process, Process, Queue]) -> None:
    """Where nobody knows whether the post was confirmed its outcome is unknown; the next one finds out."""
    first, second, queue = two
    passed = first.wire.hold(CHANGES)
    passed.open()
    first.wire.lose(CHANGES, ALWAYS)
    with pytest.raises(StoreUnavailable) as caught:
        posted(first, queue)
    assert caught.value.outcome == "unknown"
    result = posted(second, queue)
    assert result.replayed
    assert shown_once(scene, second, queue, result)


def break_request(process: Process) -> None:
    """Nothing is written, and it is said so."""
    process.wire.fail(INSERTS)


def break_answer(process: Process) -> None:
    """All is written, and nobody is told."""
    process.wire.lose(INSERTS)


@pytest.mark.parametrize("fail", [break_request, break_answer], ids=lambda fail: str(fail.__name__))
def test_failed_writes(scene: Scene, two: tuple[Process, Process, Queue], fail: Callable[[Process], None]) -> None:
    """A post that failed has left nothing, and the next one with its key need not wait."""
    first, second, queue = two
    fail(first)
    with pytest.raises(StoreUnavailable) as caught:
        posted(first, queue)
    assert caught.value.outcome == "none"
    result = posted(second, queue)
    assert not result.replayed
    assert shown_once(scene, second, queue, result)


def test_late_writes(scene: Scene, two: tuple[Process, Process, Queue]) -> None:
    """Messages that were written too late are removed, and are not confirmed by anybody."""
    first, second, queue = two
    first.wire.meanwhile(INSERTS, lambda: scene.world.advance(W + 0.5))
    with pytest.raises(StoreUnavailable):
        posted(first, queue)
    result = posted(second, queue)
    assert not result.replayed
    assert shown_once(scene, second, queue, result)


def test_removal_that_fails(scene: Scene, two: tuple[Process, Process, Queue]) -> None:
    """As long as what was written cannot be removed nothing is stored anew."""
    first, second, queue = two
    first.wire.lose(INSERTS)
    first.wire.fail(DELETES, ALWAYS)
    second.wire.fail(DELETES, ALWAYS)
    for process in (first, second):
        end = begun(process, queue)
        while not end.done():
            scene.world.advance(0.5)
            time.sleep(0.05)
        error = end.exception(PATIENCE)
        assert isinstance(error, StoreUnavailable)
        assert error.outcome == "unknown"
    second.wire.clear()
    result = posted(second, queue)
    assert not result.replayed
    assert shown_once(scene, second, queue, result)
