"""G4 to G6 hold while web processes and nodes are killed and paused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.faults.claiming.run import ClaimRun, Result
from tests.faults.conftest import PROPERTY
from tests.faults.experiment import Store
from tests.faults.nemesis import Act, Span, Step, fault_minutes, in_minutes, random_acts

if TYPE_CHECKING:
    from deploy.local import CassandraCluster

Record = Callable[[str, object], None]

WEBS = ["web-1", "web-2", "web-3", "web-4"]


def verify(result: Result, record: Record, least: dict[str, int]) -> None:
    """Checks that a run showed no violation, and that enough happened in it."""
    record(PROPERTY, str(result.counts))
    assert result.violations == [], result.explain()
    assert {name: result.counts.get(name, 0) for name, few in least.items() if result.counts.get(name, 0) < few} == {}


def test_sqlite(tmp_path: Path, record_property: Record) -> None:
    """Two services on one SQLite store, paused and killed: no message is lost, claimed twice at once or given again."""
    store = Store(options=(), span=Span(deadline=0.5, delay=0.5))
    acts: list[Act] = [
        (Step("pause", "web-1", 3.0), Step("kill", "web-2", 0.2, after=0.5)),
        (Step("kill", "web-1", 0.2), Step("pause", "web-2", 5.0, after=0.5)),
    ]
    result = ClaimRun(tmp_path, store, seed=1, webs=2).run(acts, rest=0.5)
    verify(result, record_property, {"posted": 40, "again": 3, "acknowledgements done": 40, "faults": 4})


AMONG_WORKERS: list[Act] = [
    (Step("pause", "web-1/1", 4.0), Step("kill", "web-1/2", 0.0, after=0.5)),
    (Step("pause", "web-1/3", 1.0), Step("pause", "web-1/4", 4.0, after=0.5)),
]
"""Workers are paused for longer and shorter than the others wait for them, and one is killed."""


def test_workers_of_one_service(tmp_path: Path, record_property: Record) -> None:
    """Workers that leave claims of a partition to one of them lose none when one is paused or killed."""
    store = Store(options=(), span=Span(deadline=0.5, delay=0.5))
    result = ClaimRun(tmp_path, store, seed=2, webs=1, workers=4).run(AMONG_WORKERS, rest=0.5)
    verify(
        result, record_property, {"posted": 40, "again": 3, "acknowledgements done": 40, "faults": 4, "forwarded": 10}
    )


PAUSES: Act = (
    Step("pause", "web-1", 6.0),
    Step("pause", "node-2", 2.0, after=1.0),
    Step("kill", "web-2", 0.5, after=2.0),
)
"""A web process is paused for longer than claims last, and meanwhile a node is, and another web process killed."""
DEATH: Act = (Step("kill", "node-3", 1.0), Step("pause", "web-3", 3.0, after=0.5))


@pytest.mark.slow
def test_cassandra(
    tmp_path: Path, record_property: Record, cassandra_nodes: CassandraCluster, nodes_keyspace: str
) -> None:
    """Three web processes on three nodes; web processes and nodes are paused and killed."""
    from tests.faults.cluster import store_on  # noqa: PLC0415 - only who uses it needs the driver

    span = Span(deadline=1.0, delay=2.5)
    store = store_on(cassandra_nodes, nodes_keyspace, span, difference=0.5, row_age=1.0)
    result = ClaimRun(tmp_path, store, seed=1, webs=3).run([PAUSES, DEATH], rest=0.5)
    least = {"posted": 25, "again": 2, "acknowledgements done": 25, "faults": len(PAUSES) + len(DEATH)}
    verify(result, record_property, least)


@pytest.mark.slow
def test_workers_on_cassandra(
    tmp_path: Path, record_property: Record, cassandra_nodes: CassandraCluster, nodes_keyspace: str
) -> None:
    """Four workers of one service on three nodes; workers and a node are paused and killed."""
    from tests.faults.cluster import store_on  # noqa: PLC0415 - only who uses it needs the driver

    store = store_on(cassandra_nodes, nodes_keyspace, Span(deadline=1.0, delay=2.5), difference=0.5, row_age=1.0)
    acts: list[Act] = [*AMONG_WORKERS, (Step("pause", "node-2", 2.0), Step("pause", "web-1/2", 4.0, after=0.5))]
    result = ClaimRun(tmp_path, store, seed=2, webs=1, workers=4).run(acts, rest=0.5)
    least = {"posted": 25, "again": 2, "acknowledgements done": 25, "faults": 6, "forwarded": 10}
    verify(result, record_property, least)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_cassandra_for_long(
    tmp_path: Path, record_property: Record, cassandra_nodes: CassandraCluster, nodes_keyspace: str, seed: int
) -> None:
    """The same for minutes of random faults, with the default W, S, D and C."""
    from tests.faults.cluster import store_on  # noqa: PLC0415 - only who uses it needs the driver

    store = store_on(cassandra_nodes, nodes_keyspace, Span(deadline=3.0, delay=5.0), difference=1.0, row_age=1.0)
    acts = random_acts(seed, WEBS, list(store.nodes), store.span, 60 * fault_minutes())
    result = ClaimRun(tmp_path, store, seed).run(acts, rest=2.0)
    least = {"posted": 1200, "again": 40, "acknowledgements done": 1200, "faults": 5}
    verify(result, record_property, in_minutes(least))
