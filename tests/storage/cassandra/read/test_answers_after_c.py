"""Changes of a queue return once no process can use the previous row, and closing the store ends that wait."""

from __future__ import annotations

import threading

from queuey.model.errors import StoreClosed
from queuey.model.messages import QueueSpec
from queuey.storage import bridge
from queuey.storage.cassandra.tables.queues import CassandraCatalogue
from tests.replacing import replace
from tests.storage.cassandra.conftest import OpenStore


def test_closing_ends_the_wait(open_with: OpenStore, application: str) -> None:
    """Closing a store while a change waits to return says that the change may be applied, and does not hang."""
    store, other = open_with(row_age=600.0, levels={}), open_with()
    queue, _ = bridge.run(store.catalogue.create_queue(application, "queue", QueueSpec()))
    waiting = threading.Event()
    wait = CassandraCatalogue._wait_for_others

    async def wait_noticed(self: CassandraCatalogue) -> None:
        waiting.set()
        await wait(self)

    errors: list[StoreClosed] = []

    def purge() -> None:
        try:
            bridge.run(store.catalogue.purge_queue(queue))
        except StoreClosed as error:
            errors.append(error)

    thread = threading.Thread(target=purge)
    with replace(wait, wait_noticed):
        thread.start()
        assert waiting.wait(60)
        store.close()
        thread.join(60)
    assert [error.outcome for error in errors] == ["unknown"]
    assert bridge.run(other.catalogue.queue(application, "queue")).qid != queue.qid
