"""Changes of a queue answer when no process can be using the row of before."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from queuey.errors import StoreClosed
from queuey.messages import Queue, QueueSpec
from queuey.storage.cassandra import CassandraStore
from queuey.storage.cassandra.catalogue.queues import CassandraCatalogue
from tests.cassandra.conftest import OpenStore
from tests.contract.samples import eventually
from tests.replacing import replace

C = 1.0
CHANGES: dict[str, Callable[[CassandraStore, Queue], object]] = {
    "update": lambda store, queue: store.update_queue(queue, QueueSpec(ttl=5)),
    "purge": lambda store, queue: store.purge_queue(queue),
    "delete": lambda store, queue: store.delete_queue(queue),
}


def uses_old_row(other: CassandraStore, queue: Queue) -> bool:
    """Whether a store would work with this row of a queue without asking Cassandra."""
    row = other._rows.get(queue.application, queue.name)
    return row is not None and row.queue == queue


@pytest.mark.parametrize("change", sorted(CHANGES))
def test_nobody_uses_the_old_row(open_with: OpenStore, application: str, change: str) -> None:
    """When the answer is there, another process that had just read the row uses it no more."""
    store, other = open_with(row_age=C), open_with(row_age=C)
    queue, _ = store.create_queue(application, "queue", QueueSpec())
    # Soon: a row is used for a second, and the machine may stand still for longer.
    assert eventually(lambda: other.queue(application, "queue", fresh=True) == queue and uses_old_row(other, queue))
    CHANGES[change](store, queue)
    assert not uses_old_row(other, queue)


def test_closing_ends_the_wait(open_with: OpenStore, application: str) -> None:
    """A store that is closed while a change waits to answer says that the change may be made, and does not hang."""
    store, other = open_with(row_age=600.0, levels={}), open_with()
    queue, _ = store.create_queue(application, "queue", QueueSpec())
    waiting = threading.Event()
    wait = CassandraCatalogue._wait_for_others

    def wait_noticed(self: CassandraCatalogue) -> None:
        waiting.set()
        wait(self)

    errors: list[StoreClosed] = []

    def purge() -> None:
        try:
            store.purge_queue(queue)
        except StoreClosed as error:
            errors.append(error)

    thread = threading.Thread(target=purge)
    with replace(wait, wait_noticed):
        thread.start()
        assert waiting.wait(60)
        store.close()
        thread.join(60)
    assert [error.outcome for error in errors] == ["unknown"]
    assert other.queue(application, "queue").qid != queue.qid
