"""G4 to G6 hold while web processes and nodes are killed and paused."""

from __future__ import annotations

from pathlib import Path

from queuey.storage.cassandra.cluster.timing import ONE_CENTRE_TIMING
from tests.faults.claiming.run import ClaimRun
from tests.faults.webs import MakeStore, Span, Store, make_span
from tests.harness.nemesis import Step, Wave
from tests.harness.plans import Plan, Record, long_plan, plans, verify

FEW = {"acknowledged": 25, "again": 2, "acknowledgements done": 25}
MANY = {"acknowledged": 40, "again": 3, "acknowledgements done": 40}
"""Minimum counts of a run."""
SQLITE: list[Wave] = [
    (Step("pause", "web-1", 3.0), Step("kill", "web-2", 0.2, at=0.5)),
    (Step("kill", "web-1", 0.2), Step("pause", "web-2", 5.0, at=0.5)),
]


@plans("claims/sqlite", Plan(1, "two-waves", least=MANY | {"faults": 4}))
def test_sqlite(tmp_path: Path, record_property: Record, plan: Plan) -> None:
    """Two services on one SQLite store, paused and killed: no message is lost, claimed twice at once or given again."""
    store = Store(Span(deadline=0.5, delay=0.5))
    run = ClaimRun(tmp_path, store, webs=2, written={"two-waves": SQLITE})
    verify(plan, lambda: run.run(plan, rest=0.5), record_property)


AMONG_WORKERS: list[Wave] = [
    (Step("pause", "web-1/1", 4.0), Step("kill", "web-1/2", 0.0, at=0.5)),
    (Step("pause", "web-1/3", 1.0), Step("pause", "web-1/4", 4.0, at=0.5)),
]
"""Workers are paused for longer and shorter than the others wait for them, and one is killed."""


@plans("claims/workers", Plan(2, "two-waves", least=MANY | {"faults": 4, "forwarded": 10}))
def test_workers_of_one_service(tmp_path: Path, record_property: Record, plan: Plan) -> None:
    """Workers that leave the claims of a partition to one of them lose none when one is paused or killed."""
    store = Store(Span(deadline=0.5, delay=0.5))
    run = ClaimRun(tmp_path, store, webs=1, workers=4, written={"two-waves": AMONG_WORKERS})
    verify(plan, lambda: run.run(plan, rest=0.5), record_property)


PAUSES: Wave = (Step("pause", "web-1", 6.0), Step("pause", "node-2", 2.0, at=1.0), Step("kill", "web-2", 0.5, at=2.0))
"""A web process is paused for longer than claims last. Meanwhile a node is paused and another web process killed."""
DEATH: Wave = (Step("kill", "node-3", 1.0), Step("pause", "web-3", 3.0, at=0.5))


@plans("claims/cassandra", Plan(1, "two-waves", least=FEW | {"faults": 5}, slow=True))
def test_cassandra(tmp_path: Path, record_property: Record, three_nodes: MakeStore, plan: Plan) -> None:
    """Three web processes keep G4 to G6 on three nodes while web processes and nodes are paused and killed."""
    store = three_nodes(Span(deadline=1.0, delay=2.5), difference=0.5, row_age=1.0)
    run = ClaimRun(tmp_path, store, webs=3, written={"two-waves": [PAUSES, DEATH]})
    verify(plan, lambda: run.run(plan, rest=0.5), record_property)


@plans(
    "claims/workers-cassandra",
    Plan(2, "three-waves", least=FEW | {"faults": 6, "forwarded": 10, "over_loop": 100}, slow=True),
)
def test_workers_on_cassandra(tmp_path: Path, record_property: Record, three_nodes: MakeStore, plan: Plan) -> None:
    """Four workers of one service keep G4 to G6 on three nodes while workers and a node are paused and killed."""
    store = three_nodes(Span(deadline=1.0, delay=2.5), difference=0.5, row_age=1.0)
    waves = [*AMONG_WORKERS, (Step("pause", "node-2", 2.0), Step("pause", "web-1/2", 4.0, at=0.5))]
    run = ClaimRun(tmp_path, store, webs=1, workers=4, written={"three-waves": waves})
    verify(plan, lambda: run.run(plan, rest=0.5), record_property)


LONG_LEAST = {"acknowledged": 1200, "again": 40, "acknowledgements done": 1200, "faults": 5}


@plans("claims/cassandra-defaults", *(long_plan(seed, "kill,pause", LONG_LEAST) for seed in (1, 2)))
def test_cassandra_with_defaults(tmp_path: Path, record_property: Record, three_nodes: MakeStore, plan: Plan) -> None:
    """G4 to G6 hold for minutes of random faults, with the W, S, D and C of a new keyspace."""
    store = three_nodes(
        make_span(ONE_CENTRE_TIMING), difference=ONE_CENTRE_TIMING.clock_difference, row_age=ONE_CENTRE_TIMING.row_age
    )
    verify(plan, lambda: ClaimRun(tmp_path, store, written={}).run(plan, rest=2.0), record_property)
