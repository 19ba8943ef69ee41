"""The measures on Cassandra: the baselines do the work that they stand for, and equal things are compared."""

from __future__ import annotations

import pytest

from bench.baselines import cassandra_table, slices
from bench.measures import cassandra, over_http
from tests.servers.plugin import Cassandra


@pytest.fixture
def address(cassandra: Cassandra, monkeypatch: pytest.MonkeyPatch) -> cassandra_table.Address:
    """Address of a node with the baselines' table, in the environment."""
    node = cassandra_table.Address(tuple(cassandra.contact_points), cassandra.port)
    monkeypatch.setenv("BENCH_CASSANDRA", node.text)
    cassandra_table.prepare(node)
    return node


def test_the_rows_of_the_driver_are_written_and_read(address: cassandra_table.Address) -> None:
    """Batches write as many rows as they count, in the order of ids; slices read what is there, from anywhere."""
    slices.fill(address, 300)
    for work in slices.WORK.values():
        rows, cpu = slices.run_callers(work, 2, 0.1)
        assert rows > 0 < cpu
    session = cassandra_table.connect(address)
    written = session.execute("SELECT id FROM messages WHERE queue = 1 AND partition = 1").all()
    read = slices.Read(session, 0)
    assert slices.count_rows(session) == 300
    assert {read() for _ in range(3)} == {slices.ROWS}
    session.cluster.shutdown()
    times = [row[0].time for row in written]
    assert len(times) % slices.ROWS == 0
    assert times == sorted(set(times))


def test_no_queue_is_created_twice() -> None:
    """A run sends more than it counts, up to twice the connections; those name queues that no other run names."""
    first, second = (cassandra.scale.make_creations(range(start, start + 5)).requests for start in (0, 5))
    assert not {*first} & {*second}
    assert len({*first}) == 5 + 2 * over_http.CONNECTIONS
