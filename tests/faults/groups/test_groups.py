"""O1 to O5 hold for members over HTTP while web processes and nodes are killed and paused."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.groups.run import GroupRun
from tests.faults.webs import MakeStore, Span, Store
from tests.harness.nemesis import Step, Wave
from tests.harness.plans import Plan, Record, plans, verify

pytestmark = pytest.mark.slow

LEAST = {"acknowledged": 60, "stays": 25, "given back": 2, "taken as lost": 3, "faults": 4}
"""Minimum counts of a run."""
MANY = LEAST | {"stays": 40, "refused": 1}
STORE = Store(Span(deadline=2.5, delay=0.5))
"""Its span makes drawn faults shorter and longer than sessions."""
SQLITE: list[Wave] = [
    (Step("pause", "web-1", 3.0), Step("kill", "web-2", 0.2, at=0.5)),
    (Step("pause", "web-1", 6.0), Step("pause", "web-2", 7.0, at=0.5)),
    (Step("kill", "web-1", 0.2), Step("pause", "web-2", 5.0, at=0.5)),
]
"""Services are paused for shorter and longer than sessions last, also both at once."""


@plans("members/sqlite", Plan(1, "three-waves", least=LEAST), Plan(2, "kill,pause", 60, MANY))
def test_sqlite(tmp_path: Path, record_property: Record, plan: Plan) -> None:
    """Two services on one SQLite file keep O1 to O5 while they are paused and killed."""
    run = GroupRun(tmp_path, STORE, webs=2, written={"three-waves": SQLITE})
    verify(plan, lambda: run.run(plan, rest=3.0), record_property)


@plans("members/orderly", Plan(1, "one-wave", least={"acknowledged": 60, "stays": 15, "given back": 8}))
def test_orderly(tmp_path: Path, record_property: Record, plan: Plan) -> None:
    """Without failures, members that come and leave lose no partition to each other, and handle nothing twice."""
    waves = {"one-wave": [(Step("pause", "web-1", 0.2, at=15.0),)]}
    run = GroupRun(tmp_path, STORE, webs=2, orderly=True, written=waves)
    result = verify(plan, lambda: run.run(plan, rest=0.0), record_property)
    assert (result.counts["taken as lost"], result.counts["again"]) == (0, 0), result.explain()


AMONG_WORKERS: list[Wave] = [
    (Step("pause", "web-1/1", 4.0), Step("kill", "web-1/2", 0.0, at=0.5)),
    (Step("pause", "web-1/3", 2.0), Step("pause", "web-1/4", 6.0, at=0.5)),
    (Step("kill", "web-1/1", 0.0), Step("kill", "web-1/3", 0.0, at=0.3), Step("pause", "web-1/2", 5.0, at=0.5)),
]


@plans("members/workers", Plan(1, "three-waves", least=LEAST))
def test_workers_of_one_service(tmp_path: Path, record_property: Record, plan: Plan) -> None:
    """Four processes of one service keep O1 to O5 while they are paused and killed."""
    run = GroupRun(tmp_path, STORE, webs=1, workers=4, written={"three-waves": AMONG_WORKERS})
    verify(plan, lambda: run.run(plan, rest=3.0), record_property)


CASSANDRA: list[Wave] = [
    (Step("pause", "web-1", 6.0), Step("pause", "node-2", 2.0, at=1.0), Step("kill", "web-2", 0.5, at=2.0)),
    (Step("kill", "node-3", 1.0), Step("pause", "web-3", 3.0, at=0.5)),
    # Without a majority nothing is renewed: sessions end, and all members join again.
    (Step("pause", "node-1", 7.0), Step("pause", "node-2", 7.0), Step("kill", "web-1", 0.5, at=3.0)),
]


@plans("members/cassandra", Plan(1, "three-waves", least=LEAST), Plan(2, "kill,pause", 90, MANY))
def test_cassandra(tmp_path: Path, record_property: Record, three_nodes: MakeStore, plan: Plan) -> None:
    """Three services on three nodes keep O1 to O5 while services and nodes are paused and killed."""
    store = three_nodes(Span(deadline=1.0, delay=2.5), difference=0.5, row_age=1.0)
    run = GroupRun(tmp_path, store, webs=3, session=5.0, written={"three-waves": CASSANDRA})
    verify(plan, lambda: run.run(plan, rest=3.0), record_property)
