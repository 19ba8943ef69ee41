"""Named messages in real Cassandra: wherever a writer stops, the next one finds what is left to do."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from queuey.errors import NameChanged, StoreUnavailable
from queuey.messages import Named, Queue
from queuey.storage.cassandra import names
from tests.cassandra.interposed import DELETES, INSERTS, Gate
from tests.cassandra.scene import TTL, D, Process, Reader, S, Scene, W, message

CHANGES = (names._SET,)


@pytest.fixture
def two(scene: Scene) -> tuple[Process, Process, Queue, Named]:
    """Two processes, a queue that both know, and a name that stands for "old"."""
    first, second = scene.start(), scene.start()
    queue = scene.queue(first, ttl=TTL)
    assert second.store.queue(queue.application, queue.name) == queue
    return first, second, queue, first.store.write_named(queue, "n", message("old"), b"old", None)


def before_all(process: Process) -> Gate:
    """It has made an id, and nobody knows of it yet."""
    return process.wire.hold(CHANGES)


def before_writing(process: Process) -> Gate:
    """It has entered the id, and what it writes arrives late."""
    return process.wire.hold(INSERTS)


def before_confirming(process: Process) -> Gate:
    """It knows that the message is written, and nobody else does."""
    process.wire.hold(CHANGES).open()
    return process.wire.hold(CHANGES)


def before_removing(process: Process) -> Gate:
    """It has confirmed the value, and the one before is still there."""
    return process.wire.hold(DELETES)


STOPS = (before_all, before_writing, before_confirming, before_removing)


@pytest.mark.parametrize("stop", STOPS, ids=lambda stop: str(stop.__name__))
def test_another_process_goes_on(
    scene: Scene, two: tuple[Process, Process, Queue, Named], stop: Callable[[Process], Gate]
) -> None:
    """The old value counts until the new one is confirmed; what is not confirmed by its writer is removed."""
    first, second, queue, old = two
    gate = stop(first)
    ends: list[object] = []

    def write() -> None:
        try:
            ends.append(first.store.write_named(queue, "n", message("lost"), b"lost", old))
        except (NameChanged, StoreUnavailable) as error:
            ends.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    gate.reached()
    found = second.store.find_named(queue, "n")
    assert found is not None
    if stop is before_removing:
        assert (found.content, found.replaced) == (b"lost", old.location)
        second.store.delete(queue, [place for place in [found.replaced] if place is not None])
        second.store.settle_named(queue, "n", found)
        found = second.store.find_named(queue, "n")
    else:
        assert (found.content, found.replaced) == (b"old", None)
        while found is not None and found.busy:
            assert found.busy <= W
            scene.world.advance(W / 4)
            found = second.store.find_named(queue, "n")
    assert found is not None
    new = second.store.write_named(queue, "n", message("new"), b"new", found)
    assert new.replaced == found.location
    gate.open()
    thread.join()
    assert len(ends) == 1
    assert isinstance(ends[0], Named) == (stop is before_removing)
    scene.world.advance(D + S)
    reader = Reader(second, queue)
    reader.go_on()
    assert reader.bodies == ["new"]
    current = first.store.find_named(queue, "n")
    assert current is not None
    assert (current.location, current.busy) == (new.location, 0)
