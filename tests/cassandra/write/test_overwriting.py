"""A message that is overwritten stays readable all the time, in its old or its new form."""

from __future__ import annotations

import threading

import pytest

from queuey.errors import StoreUnavailable
from queuey.ids import Position
from queuey.messages import Queue
from queuey.storage import bridge
from tests.cassandra.interposed import DELETES, INSERTS, WAIT_TIMEOUT
from tests.cassandra.scene import D, Process, Reader, S, Scene, message
from tests.contract.samples import run_call


@pytest.fixture
def process(scene: Scene) -> Process:
    return scene.start()


@pytest.fixture
def queue(scene: Scene, process: Process) -> Queue:
    return scene.queue(process)


@pytest.fixture
def position(scene: Scene, process: Process, queue: Queue) -> Position:
    """Stores a message that every reader may see; returns its position."""
    [stored_at] = process.post(queue, message("old")).result(WAIT_TIMEOUT)
    scene.world.advance(D + S)
    return stored_at


def shown(process: Process, queue: Queue) -> list[str]:
    reader = Reader(process, queue)
    reader.read_more()
    return reader.bodies


@pytest.mark.parametrize("statements", [INSERTS, DELETES], ids=["written", "removed"])
def test_meanwhile(
    process: Process, queue: Queue, position: Position, statements: tuple[object, ...], scene: Scene
) -> None:
    """Whichever request is slow, a reader who passes meanwhile is shown the message once."""
    other = scene.start()
    gate = process.wire.hold(statements)  # type: ignore[arg-type] # statements
    thread = threading.Thread(
        target=run_call, args=(process.store.messages.put, queue, [(1, position)], message("new"))
    )
    thread.start()
    gate.wait_until_reached()
    assert shown(other, queue) in (["old"], ["new"])
    assert [one.body for one in bridge.run(other.store.messages.fetch(queue, [(1, position)]))] in (["old"], ["new"])
    gate.open()
    thread.join(WAIT_TIMEOUT)
    assert shown(other, queue) == ["new"]


@pytest.mark.parametrize("lost", [False, True])
def test_failed(process: Process, queue: Queue, position: Position, *, lost: bool) -> None:
    """After a failed overwrite the message is still what it was."""
    if lost:
        process.wire.lose(INSERTS)
    else:
        process.wire.fail(INSERTS)
    with pytest.raises(StoreUnavailable) as raised:
        bridge.run(process.store.messages.put(queue, [(1, position)], message("new")))
    assert raised.value.outcome == ("unknown" if lost else "none")
    assert shown(process, queue) == (["new"] if lost else ["old"])


def test_not_removed(process: Process, queue: Queue, position: Position) -> None:
    """If the old message cannot be removed, the new one counts nevertheless, and the caller may try again."""
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
    """If only some of several messages were overwritten, the error does not claim that nothing was written."""
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
