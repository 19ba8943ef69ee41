"""Named messages in real Cassandra: wherever a writer stops, the next one finds what is left to do."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from queuey.errors import NameChanged, StoreUnavailable
from queuey.messages import Named, Queue, Slice
from queuey.storage import bridge
from queuey.storage.cassandra.store import names
from tests.cassandra.begun import page_of
from tests.cassandra.interposed import DELETES, INSERTS, PATIENCE, Gate
from tests.cassandra.scene import TTL, D, Process, S, Scene, W, message

CHANGES = (names._NAMES.change,)


@pytest.fixture
def two(scene: Scene) -> tuple[Process, Process, Queue, Named]:
    """Two processes, a queue that both know, and a name that stands for "old"."""
    first, second = scene.start(), scene.start()
    queue = scene.queue(first, ttl=TTL)
    assert bridge.run(second.store.catalogue.queue(queue.application, queue.name)) == queue
    return first, second, queue, bridge.run(first.store.names.write_named(queue, "n", message("old"), b"old", None))


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


def after_writing(process: Process) -> Gate:
    """It has written the message and not heard of it."""
    return process.wire.hold(INSERTS, answered=True)


STOPS = (before_all, before_writing, before_confirming, before_removing)


def begun(process: Process, queue: Queue, seen: Named, stop: Callable[[Process], Gate]) -> Callable[[], object]:
    """Begins to write "new" as the value of the name, and holds it somewhere; returns what lets it end."""
    gate = stop(process)
    ends: list[object] = []

    def write() -> None:
        try:
            ends.append(bridge.run(process.store.names.write_named(queue, "n", message("new"), b"new", seen)))
        except (NameChanged, StoreUnavailable) as error:
            ends.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    gate.reached()

    def end() -> object:
        gate.open()
        thread.join(PATIENCE)
        return ends[0]

    return end


def shown(process: Process, queue: Queue, *, descending: bool = False) -> list[str | bytes]:
    """What a reader by time is shown."""
    return [one.body for one in page_of(process.store, queue, Slice(1, descending=descending)).messages]


@pytest.mark.parametrize("stop", [*STOPS, after_writing], ids=lambda stop: str(stop.__name__))
def test_readers_by_time(
    scene: Scene, two: tuple[Process, Process, Queue, Named], stop: Callable[[Process], Gate]
) -> None:
    """Wherever a writer stops, readers by time are shown one value, without a call for the name."""
    first, second, queue, old = two
    scene.world.advance(D + S)
    end = begun(first, queue, old, stop)
    # A value that is confirmed and not below the horizon yet is not shown, nor is the one that it replaces.
    possible: tuple[list[str], ...] = ([], ["new"]) if stop is before_removing else (["old"],)
    assert shown(first, queue) == possible[0]
    seen = []
    for _ in range(6):
        scene.world.advance((D + S) / 6)
        seen += [shown(process, queue, descending=down) for process in (second, first) for down in (False, True)]
    assert all(each in possible for each in seen), seen
    left = possible[-1]
    assert shown(second, queue) == left
    assert not isinstance(end(), Named) or left == ["new"]
    scene.world.advance(D + S)
    assert shown(first, queue) == shown(second, queue) == left
    for batch in bridge.iterate(second.store.bulk.scan_arrow(queue, Slice(1))):
        assert batch.column("body").to_pylist() == [one.encode() for one in left]
        assert batch.column("meta").null_count == 1
    found = bridge.run(second.store.names.find_named(queue, "n"))
    assert found is not None
    assert found.content == left[0].encode()


def test_readers_who_do_not_wait(scene: Scene, two: tuple[Process, Process, Queue, Named]) -> None:
    """What may be confirmed yet is neither shown nor passed."""
    first, second, queue, old = two
    end = begun(first, queue, old, before_confirming)
    scene.world.advance(W / 4)
    page = page_of(second.store, queue, Slice(1, delayed=False))
    assert [one.body for one in page.messages] == ["old"]
    assert isinstance(end(), Named)
    assert page.next is not None
    page = page_of(second.store, queue, Slice(1, page.next, delayed=False))
    assert [one.body for one in page.messages] == ["new"]


def test_names_that_cannot_be_looked_at(scene: Scene, two: tuple[Process, Process, Queue, Named]) -> None:
    """If Cassandra does not say what a name stands for, the read fails, and shows everything later."""
    _, second, queue, _ = two
    scene.world.advance(D + S)
    second.wire.fail((names._NAMES.find,))
    with pytest.raises(StoreUnavailable):
        bridge.run(second.store.messages.read(queue, [Slice(1)]))
    assert shown(second, queue) == ["old"]
