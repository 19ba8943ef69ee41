"""Named messages in real Cassandra: wherever a writer stops, the next one completes its work."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from queuey.model.errors import NameChanged, StoreUnavailable
from queuey.model.ids import LOW_MIN
from queuey.model.messages import Named, Queue, Slice
from queuey.storage import bridge
from queuey.storage.cassandra.tables import names
from tests.storage.cassandra.begun import page_of
from tests.storage.cassandra.interposed import DELETES, INSERTS, WAIT_TIMEOUT, Gate
from tests.storage.cassandra.scene import TTL, D, Process, S, Scene, W, message

STATEMENTS = names._NAME_STATEMENTS
CHANGES = (STATEMENTS.change,)


@pytest.fixture
def two(scene: Scene) -> tuple[Process, Process, Queue, Named]:
    """Two processes, a queue that both know, and a name with the value "old"."""
    first, second = scene.start(), scene.start()
    queue = scene.queue(first, ttl=TTL)
    assert bridge.run(second.store.catalogue.queue(queue.application, queue.name)) == queue
    return first, second, queue, bridge.run(first.store.names.write_named(queue, "n", message("old"), b"old", None))


def before_all(process: Process) -> Gate:
    """Holds the writer when it has minted an id that nobody else knows."""
    return process.wire.hold(CHANGES)


def before_writing(process: Process) -> Gate:
    """Holds the writer when it has entered the id; its message arrives late."""
    return process.wire.hold(INSERTS)


def before_confirming(process: Process) -> Gate:
    """Holds the writer when only it knows that the message is written."""
    process.wire.hold(CHANGES).open()
    return process.wire.hold(CHANGES)


def before_removing(process: Process) -> Gate:
    """Holds the writer when it has confirmed the value; the previous one is not removed yet."""
    return process.wire.hold(DELETES)


def after_writing(process: Process) -> Gate:
    """Holds the answer to the writer's message, which is written."""
    return process.wire.hold(INSERTS, answered=True)


STOPS = (before_all, before_writing, before_confirming, before_removing)


def begin_write(process: Process, queue: Queue, seen: Named, stop: Callable[[Process], Gate]) -> Callable[[], object]:
    """Begins to write "new" under the name, and holds it at a stage; returns the function that lets it go on."""
    gate = stop(process)
    ends: list[object] = []

    def write() -> None:
        try:
            ends.append(bridge.run(process.store.names.write_named(queue, "n", message("new"), b"new", seen)))
        except (NameChanged, StoreUnavailable) as error:
            ends.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    gate.wait_until_reached()

    def end() -> object:
        gate.open()
        thread.join(WAIT_TIMEOUT)
        return ends[0]

    return end


def shown(process: Process, queue: Queue, *, descending: bool = False) -> list[str | bytes]:
    return [message.body for message in page_of(process.store, queue, Slice(1, descending=descending)).messages]


@pytest.mark.parametrize("stop", [*STOPS, after_writing], ids=lambda stop: str(stop.__name__))
def test_readers_by_time(
    scene: Scene, two: tuple[Process, Process, Queue, Named], stop: Callable[[Process], Gate]
) -> None:
    """Wherever a writer stops, readers by time are shown one value, without a call for the name."""
    first, second, queue, old = two
    scene.world.advance(D + S)
    end = begin_write(first, queue, old, stop)
    # A confirmed value above the horizon is not shown, nor is the one it replaces.
    possible: tuple[list[str], ...] = ([], ["new"]) if stop is before_removing else (["old"],)
    assert shown(first, queue) == possible[0]
    seen = []
    for _ in range(6):
        scene.world.advance((D + S) / 6)
        seen += [shown(process, queue, descending=down) for process in (second, first) for down in (False, True)]
    assert all(each in possible for each in seen), seen
    expected = possible[-1]
    assert shown(second, queue) == expected
    assert not isinstance(end(), Named) or expected == ["new"]
    scene.world.advance(D + S)
    assert shown(first, queue) == shown(second, queue) == expected
    for batch in bridge.iterate(second.store.bulk.scan_arrow(queue, Slice(1))):
        assert batch.column("body").to_pylist() == [one.encode() for one in expected]
        assert batch.column("meta").null_count == 1
    entry = bridge.run(second.store.names.find_named(queue, "n"))
    assert entry is not None
    assert entry.content == expected[0].encode()


def test_readers_who_do_not_wait(scene: Scene, two: tuple[Process, Process, Queue, Named]) -> None:
    """A value that may still be confirmed is neither shown nor passed."""
    first, second, queue, old = two
    end = begin_write(first, queue, old, before_confirming)
    scene.world.advance(W / 4)
    page = page_of(second.store, queue, Slice(1, keeps_read_delay=False))
    assert [message.body for message in page.messages] == ["old"]
    assert isinstance(end(), Named)
    assert page.next is not None
    page = page_of(second.store, queue, Slice(1, page.next, keeps_read_delay=False))
    assert [message.body for message in page.messages] == ["new"]


def test_early_readers(scene: Scene, two: tuple[Process, Process, Queue, Named]) -> None:
    """A value is shown only after it is confirmed; messages above it are shown, and nothing is done about the name."""
    first, second, queue, old = two

    def show_early() -> list[str | bytes]:
        scene.world.advance(0.01)
        [page] = bridge.run(second.store.messages.read(queue, [Slice(1)]))
        assert page.next == (page.horizon, LOW_MIN)
        part = Slice(1, page.next, keeps_read_delay=False, early=True)
        return [message.body for message in page_of(second.store, queue, part).messages]

    assert show_early() == ["old"]
    scene.world.advance(D + S)
    end = begin_write(first, queue, old, before_confirming)
    scene.world.advance(0.1)
    second.post(queue, message("beside")).result(WAIT_TIMEOUT)
    second.wire.log.clear()
    assert show_early() == ["beside"]
    assert second.wire.log.count(CHANGES) == 0 < second.wire.log.count([STATEMENTS.find])
    end()
    assert show_early() == ["new", "beside"]


def test_names_that_cannot_be_looked_at(scene: Scene, two: tuple[Process, Process, Queue, Named]) -> None:
    """If Cassandra cannot read a name's row, the read fails, and a later read shows everything."""
    _, second, queue, _ = two
    scene.world.advance(D + S)
    second.wire.fail((STATEMENTS.find,))
    with pytest.raises(StoreUnavailable):
        bridge.run(second.store.messages.read(queue, [Slice(1)]))
    assert shown(second, queue) == ["old"]
