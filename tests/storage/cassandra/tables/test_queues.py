"""Changes of queues on a simulated cluster: how long they wait for processes that may use the previous row."""

from __future__ import annotations

from functools import partial
from typing import Any

from queuey.model.messages import QueueSpec
from queuey.storage.cassandra import CassandraOptions, CassandraStore
from queuey.storage.cassandra.tables.applications import CassandraApplications
from queuey.storage.cassandra.tables.queues import CassandraCatalogue
from tests.storage.cassandra.simulated import FaultlessDriver


def test_a_wall_clock_set_right_does_not_shorten_the_wait() -> None:
    """A purge waits C even if the wall clock, which was behind, is set right meanwhile: that looks like missed time."""
    calm, options = FaultlessDriver(), CassandraOptions(heartbeat=1e9)
    store = CassandraStore("cassandra://a/b", options, clock := calm.clock(), driver=lambda *_, **__: calm)
    calm.run_to_end(store._watch.require_sound())

    def run_call(call: Any, *arguments: object) -> Any:  # noqa: ANN401 - of any contract
        return calm.run_to_end(call.__wrapped__(*arguments))

    run_call(CassandraApplications.create_application, store.applications, "acme")
    queue, _ = run_call(CassandraCatalogue.create_queue, store.catalogue, "acme", "orders", QueueSpec())
    began, boottime = calm.world.now, clock.boottime()
    calm.world.after(0.5 * options.row_age, partial(clock.accept, clock.offset + 2 * 10**9))
    run_call(CassandraCatalogue.purge_queue, store.catalogue, queue)
    waited = calm.world.now - began
    assert waited >= options.row_age
    assert clock.boottime() - boottime > waited + 1.0
