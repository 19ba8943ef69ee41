"""The measures of bulk reads and loads: both sides move what they count."""

from __future__ import annotations

from bench import bulk_side
from bench.baselines import arrow_rows, cassandra_table, slices
from queuey.messages import QueueSpec
from queuey.storage import bridge
from queuey.storage.cassandra import open_store
from tests.servers.plugin import Cassandra, unique_name


def test_the_driver_reads_and_writes_all_rows(cassandra: Cassandra) -> None:
    """The baseline reads every row, over several pages, and writes as many as it says, the last batch included."""
    address = cassandra_table.Address(tuple(cassandra.contact_points), cassandra.port)
    cassandra_table.prepare(address)
    slices.fill(address, 300)
    session = cassandra_table.connect(address)
    assert arrow_rows.make_writer(session, 250, 100)() == 250
    count = session.execute("SELECT count(*) FROM messages").one()[0]
    assert count == 300 + 250
    assert arrow_rows.make_reader(session, 110)() == 300
    session.cluster.shutdown()


def test_our_side_reads_what_it_loaded(contract_keyspace: str) -> None:
    """What is loaded is read, as columns and as messages."""
    store = open_store(contract_keyspace)
    try:
        assert store.ready(60)
        application = unique_name("app")
        bridge.run(store.applications.create_application(application))
        queue, _ = bridge.run(store.catalogue.create_queue(application, "bench", QueueSpec(read_delay=0.0)))
        assert bulk_side.load(store, queue, 500)() == 500
        assert bulk_side.arrow(store, queue)() == 500
        assert bulk_side.messages(store, queue)() == 500
    finally:
        store.close()
