"""The guarantees hold while web processes and nodes are killed and paused."""

from __future__ import annotations

from pathlib import Path

from queuey.storage.cassandra.cluster.timing import ONE_CENTRE_TIMING
from tests.faults.message_run import MessageRun
from tests.faults.webs import MakeStore, Span, Store, make_span
from tests.harness.checking.rules import Limits
from tests.harness.nemesis import Step, Wave
from tests.harness.plans import Plan, Record, long_plan, plans, verify

LIMITS = Limits(bound=20.0, grace=2.0, calm=1.5)
SQLITE: list[Wave] = [
    (Step("pause", "web-1", 1.0), Step("kill", "web-2", 0.2, at=0.3)),
    (Step("pause", "web-2", 1.0), Step("pause", "web-1", 0.5, at=0.2)),
    (Step("kill", "web-1", 0.2), Step("kill", "web-2", 0.2, at=0.5)),
]


@plans(
    "messages/sqlite",
    Plan(1, "three-waves", least={"acknowledged": 100, "unknown": 1, "shown": 200, "during_faults": 5}),
    *(
        Plan(seed, "kill,pause", 75, {"acknowledged": 3000, "unknown": 10, "during_faults": 300}, slow=True)
        for seed in (1, 2)
    ),
)
def test_sqlite(tmp_path: Path, record_property: Record, plan: Plan) -> None:
    """Two services on one SQLite store, paused and killed: nothing is missed, lost, invented or out of order."""
    run = MessageRun(tmp_path, Store(Span(deadline=0.5, delay=0.5)), written={"three-waves": SQLITE})
    verify(plan, lambda: run.run(plan, limits=LIMITS, rest=0.3), record_property)


SPAN = Span(deadline=1.0, delay=2.5)
LATE, LONGER, LONGEST = 1.3 * SPAN.deadline, 1.2 * SPAN.delay, 1.6 * SPAN.delay
"""Durations of faults in seconds, around W and D."""
# Writes that web-1 has just sent to node-2 are stored and answered after the pause, long after readers have passed.
WRITES_LATE: Wave = (Step("pause", "node-2", LONGEST), Step("pause", "web-1", LONGEST, at=0.3))
DEATHS: Wave = (
    Step("kill", "node-3", 2.0),
    Step("pause", "web-2", LONGER, at=1.0),
    Step("pause", "node-1", LATE, at=1.5),
    # By then the killed node is back.
    Step("kill", "web-1", 0.5, at=6.0),
    Step("pause", "node-2", LATE, at=6.0),
)
MORE: list[Wave] = [
    (Step("pause", "node-1", LATE), Step("pause", "node-3", LATE)),
    (Step("pause", "node-2", LONGER), Step("pause", "node-3", LONGER)),
]
FEW = {"acknowledged": 100, "refused": 1, "unknown": 1, "shown": 300, "during_faults": 8}
MANY = {"acknowledged": 300, "refused": 3, "unknown": 3, "none_late": 1, "shown": 900, "during_faults": 20}
"""Minimum counts of a run."""


@plans("messages/cassandra", Plan(1, "two-waves", least=FEW, slow=True), Plan(1, "five-waves", least=MANY, slow=True))
def test_cassandra(tmp_path: Path, record_property: Record, three_nodes: MakeStore, plan: Plan) -> None:
    """Two web processes keep all guarantees on three nodes with small W, S, D and C, while nodes and a process fail."""
    store = three_nodes(SPAN, difference=0.5, row_age=1.0)
    waves = {"two-waves": [WRITES_LATE, DEATHS], "five-waves": [WRITES_LATE, *MORE, DEATHS, MORE[0]]}
    run = MessageRun(tmp_path, store, slowness=4.0, written=waves)
    verify(plan, lambda: run.run(plan, limits=LIMITS, rest=0.7), record_property)


LONG_LEAST = {"acknowledged": 4000, "refused": 3, "unknown": 8, "none_late": 2, "during_faults": 800}


@plans("messages/cassandra-defaults", long_plan(1, "kill,pause", LONG_LEAST))
def test_cassandra_with_defaults(tmp_path: Path, record_property: Record, three_nodes: MakeStore, plan: Plan) -> None:
    """Two web processes keep all guarantees with the W, S, D and C of a new keyspace, and clocks that differ."""
    store = three_nodes(
        make_span(ONE_CENTRE_TIMING), difference=ONE_CENTRE_TIMING.clock_difference, row_age=ONE_CENTRE_TIMING.row_age
    )
    store = store._replace(clocks={"web-1": 0.1, "web-2": -0.1})
    run = MessageRun(tmp_path, store, slowness=2.0, written={})
    verify(plan, lambda: run.run(plan, limits=Limits(calm=3.0), rest=2.0), record_property)
