"""The wait before a change of a queue is answered: without it others go on as if nothing had changed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from queuey.errors import QueueChanged
from queuey.messages import Queue, QueueSpec
from queuey.storage.cassandra import CassandraStore
from queuey.storage.cassandra.catalogue.queues import CassandraCatalogue
from tests.cassandra.interposed import PATIENCE
from tests.cassandra.scene import D, Mechanism, Reader, S, Scenario, Scene, end_of, mechanisms, played_without
from tests.replacing import replace

CHANGES: dict[str, Callable[[CassandraStore, Queue], object]] = {
    "purge": lambda store, queue: store.purge_queue(queue),
    "delete": lambda store, queue: store.delete_queue(queue),
    "update": lambda store, queue: store.update_queue(queue, QueueSpec(read_delay=60.0)),
}


def written_afterwards(change: str) -> Scenario:
    """Makes a scenario: a process that has just looked at a queue writes to it after another's change."""

    def play(scene: Scene) -> list[str]:
        changing, other = scene.start(), scene.start()
        queue = scene.queue(changing)
        other.store.queue(queue.application, queue.name, fresh=True)
        scene.world.advance(0.01)
        CHANGES[change](changing.store, queue)
        end = end_of(other.post(queue))
        return [] if end == QueueChanged.code else [f"{end}, although the queue had changed"]

    return play


def read_afterwards(change: str) -> Scenario:
    """Makes a scenario: a process that has just looked at a queue reads it after another's change."""

    def play(scene: Scene) -> list[str]:
        changing, other = scene.start(), scene.start()
        queue = scene.queue(changing)
        changing.post(queue).result(PATIENCE)
        scene.world.advance(D + S)
        other.store.queue(queue.application, queue.name, fresh=True)
        scene.world.advance(0.01)
        CHANGES[change](changing.store, queue)
        try:
            shown = Reader(other, queue).go_on()
        except QueueChanged:
            return []
        return [f"{len(shown)} messages shown, although the queue had changed"]

    return play


def no_wait(removed: ExitStack) -> None:
    """Answers at once."""
    removed.enter_context(replace(CassandraCatalogue._wait_for_others, lambda self: None))


WAITS = (
    *(Mechanism(f"{change}, then a write", written_afterwards(change), no_wait) for change in CHANGES),
    *(Mechanism(f"{change}, then a read", read_afterwards(change), no_wait) for change in CHANGES),
)


@mechanisms(*WAITS)
def test_holds(scene: Scene, mechanism: Mechanism) -> None:
    """When a change is answered, every process goes by it."""
    assert mechanism.scenario(scene) == []


@mechanisms(*WAITS)
def test_it_is_what_does_it(scene: Scene, mechanism: Mechanism) -> None:
    """Without the wait one does not."""
    assert played_without(scene, mechanism)
