"""A message that is written over is there all the time, as it was or as it will be."""

from __future__ import annotations

import threading

import pytest

from queuey.errors import StoreUnavailable
from queuey.ids import Position
from queuey.messages import Queue
from queuey.storage import bridge
from tests.cassandra.interposed import DELETES, INSERTS, PATIENCE
from tests.cassandra.scene import D, Process, Reader, S, Scene, message
from tests.contract.samples import ran


@pytest.fixture
def process(scene: Scene) -> Process:
    """A process."""
    return scene.start()


@pytest.fixture
def queue(scene: Scene, process: Process) -> Queue:
    """A queue."""
    return scene.queue(process)


@pytest.fixture
def position(scene: Scene, process: Process, queue: Queue) -> Position:
    """A message that every reader may see."""
    [found] = process.post(queue, message("old")).result(PATIENCE)
    scene.world.advance(D + S)
    return found


def shown(process: Process, queue: Queue) -> list[str]:
    """What a reader is shown."""
    reader = Reader(process, queue)
    reader.go_on()
    return reader.bodies


@pytest.mark.parametrize("statements", [INSERTS, DELETES], ids=["written", "removed"])
def test_meanwhile(
    process: Process, queue: Queue, position: Position, statements: tuple[object, ...], scene: Scene
) -> None:
    """Whichever of the requests takes long: a reader who passes meanwhile is shown the message, once."""
    other = scene.start()
    gate = process.wire.hold(statements)  # type: ignore[arg-type] # statements
    thread = threading.Thread(target=ran, args=(process.store.messages.put, queue, [(1, position)], message("new")))
    thread.start()
    gate.reached()
    assert shown(other, queue) in (["old"], ["new"])
    assert [one.body for one in bridge.run(other.store.messages.fetch(queue, [(1, position)]))] in (["old"], ["new"])
    gate.open()
    thread.join(PATIENCE)
    assert shown(other, queue) == ["new"]


@pytest.mark.parametrize("lost", [False, True])
def test_failed(process: Process, queue: Queue, position: Position, *, lost: bool) -> None:
    """A message that could not be written over is as it was, if it is not as it should be."""
    if lost:
        process.wire.lose(INSERTS)
    else:
        process.wire.fail(INSERTS)
    with pytest.raises(StoreUnavailable) as raised:
        bridge.run(process.store.messages.put(queue, [(1, position)], message("new")))
    assert raised.value.outcome == ("unknown" if lost else "none")
    assert shown(process, queue) == (["new"] if lost else ["old"])


def test_not_removed(process: Process, queue: Queue, position: Position) -> None:
    """If the message of before cannot be removed, the new one counts all the same, and the caller may try again."""
    process.wire.fail(DELETES)
    with pytest.raises(StoreUnavailable) as raised:
        bridge.run(process.store.messages.put(queue, [(1, position)], message("new")))
    assert raised.value.outcome == "unknown"
    assert shown(process, queue) == ["new"]
    bridge.run(process.store.messages.put(queue, [(1, position)], message("newer")))
    assert shown(process, queue) == ["newer"]
    bridge.run(process.store.messages.delete(queue, [(1, position)]))
    assert shown(process, queue) == []


def test_some_written(process: Process, queue: Queue, position: Position) -> None:
    """If some of several messages were written over and others not, nobody is told that nothing was written."""
    second = position[0] + 1, position[1]
    process.wire.fail(INSERTS)
    with pytest.raises(StoreUnavailable) as raised:
        bridge.run(process.store.messages.put(queue, [(1, position), (1, second)], message("new")))
    assert raised.value.outcome == "unknown"
    assert sorted(shown(process, queue)) == ["new", "old"]
    process.wire.fail(INSERTS, 2)
    with pytest.raises(StoreUnavailable) as raised:
        bridge.run(process.store.messages.put(queue, [(1, position), (1, second)], message("newer")))
    assert raised.value.outcome == "none"
    assert sorted(shown(process, queue)) == ["new", "old"]
