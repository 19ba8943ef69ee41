"""Reads that are begun and not waited for: they find what others find, and begin nothing that would have to wait."""

from __future__ import annotations

import threading

import pytest

from queuey.errors import StoreUnavailable
from queuey.ids import FIRST, LAST
from queuey.messages import Page, Queue, Slice
from queuey.storage.cassandra import message_codec
from queuey.storage.cassandra.driver import Request, Statement
from tests.cassandra.begun import begun_page
from tests.cassandra.interposed import PATIENCE
from tests.cassandra.scene import C, D, Process, S, Scene, message

ROWS = 300


@pytest.fixture
def process(scene: Scene) -> Process:
    """One of them."""
    return scene.start()


@pytest.fixture
def queue(scene: Scene, process: Process) -> Queue:
    """A queue with messages that are to be read."""
    queue = scene.queue(process)
    for number in range(0, ROWS, 50):
        process.post(queue, *(message(str(one)) for one in range(number, number + 50))).result(PATIENCE)
        scene.world.advance(0.3)
    scene.world.advance(D + S)
    return queue


def known(process: Process, queue: Queue, part: Slice) -> Page:
    """Reads as usual: row and buckets are in memory after that."""
    return process.store.read(queue, [part])[0]


def test_nothing_is_begun_that_would_have_to_wait(scene: Scene, process: Process, queue: Queue) -> None:
    """What is not in memory, too old, or not there to be read has to be asked for in the ordinary way."""
    other, part = scene.start(), Slice(1)
    row = other.store.queue(scene.application, "queue")
    assert begun_page(other.store, row, part) is None
    known(other, row, part)
    assert begun_page(other.store, row, part) is not None
    assert begun_page(other.store, row, Slice(2)) is None
    assert begun_page(other.store, row, Slice(1, lower=LAST)) is None
    assert begun_page(other.store, row, Slice(1, limit=0)) is None
    scene.world.advance(C + 0.1)
    assert begun_page(other.store, row, part) is None
    known(other, row, part)
    process.store.purge_queue(process.store.queue(scene.application, "queue", fresh=True))
    assert begun_page(other.store, row, part) is None


def test_a_begun_read_tells_of_a_failure(process: Process, queue: Queue) -> None:
    """If Cassandra cannot answer, the read ends with the error that others raise."""
    known(process, queue, Slice(1))
    process.wire.fail(message_codec.UP)
    with pytest.raises(StoreUnavailable):
        begun_page(process.store, queue, Slice(1))


def test_the_drivers_own_thread_never_waits_for_itself(process: Process, queue: Queue) -> None:
    """A statement that was not prepared is refused there: the answer to preparing it could not be received."""
    ended: list[BaseException | None] = []
    unknown = Statement("SELECT qid FROM bucket_index WHERE qid = ? AND partition = ? AND width_index = 99")
    done = threading.Event()

    def ask(_: object, __: object) -> None:
        def told(_rows: object, error: BaseException | None) -> None:
            ended.append(error)
            done.set()

        process.store._driver.send(Request(unknown, (1, 1)), told)

    values = (1, 1, 1, *[message_codec.uuid_of(FIRST)] * 2)
    process.store._driver.send(Request(message_codec.COUNT[0], values), ask)
    assert done.wait(PATIENCE)
    assert [str(error) for error in ended] == [
        "a statement that was not prepared cannot be asked from the driver's own thread"
    ]
