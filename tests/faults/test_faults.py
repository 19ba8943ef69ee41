"""The guarantees hold while web processes are killed and paused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tests.faults.checking.checker import Limits
from tests.faults.checking.counts import vacuous
from tests.faults.conftest import PROPERTY
from tests.faults.experiment import Experiment, Store, explain
from tests.faults.nemesis import Act, Span, Step

if TYPE_CHECKING:
    from deploy.local import CassandraCluster

Record = Callable[[str, object], None]

LIMITS = Limits(bound=20.0, grace=2.0, calm=1.5)


def test_sqlite(tmp_path: Path, record_property: Record) -> None:
    """Two services on one SQLite store, paused and killed: nothing is missed, lost, invented or out of order."""
    store = Store(options=(), span=Span(deadline=0.5, delay=0.5))
    acts: list[Act] = [
        (Step("pause", "web-1", 1.0), Step("kill", "web-2", 0.2, after=0.3)),
        (Step("pause", "web-2", 1.0), Step("pause", "web-1", 0.5, after=0.2)),
        (Step("kill", "web-1", 0.2), Step("kill", "web-2", 0.2, after=0.5)),
    ]
    check_result = Experiment(tmp_path, store, seed=1).run(acts, limits=LIMITS, rest=0.3)
    record_property(PROPERTY, str(check_result.counts))
    assert check_result.violations == [], explain(check_result)
    assert vacuous(check_result.counts, {"acknowledged": 200, "unknown": 1, "shown": 400, "during_faults": 10}) == []


def cassandra_acts(span: Span) -> list[Act]:
    """What is done to nodes and web processes, around the times that matter."""
    late, longer, longest = 1.3 * span.deadline, 1.2 * span.delay, 1.6 * span.delay
    return [
        # What web-1 has just sent to node-2 is written and answered when they go on, long after readers have passed.
        (Step("pause", "node-2", longest), Step("pause", "web-1", longest, after=0.3)),
        (Step("pause", "node-1", late), Step("pause", "node-3", late)),
        (Step("pause", "node-2", longer), Step("pause", "node-3", longer)),
        (
            Step("kill", "node-3", 2.0),
            Step("pause", "web-2", longer, after=1.0),
            Step("pause", "node-1", late, after=1.5),
            # The node takes a while to come back.
            Step("kill", "web-1", 0.5, after=6.0),
            Step("pause", "node-2", late, after=6.0),
        ),
        (Step("pause", "node-2", late), Step("pause", "node-3", late)),
    ]


def test_cassandra(tmp_path: Path, record_property: Record, cassandra_nodes: CassandraCluster) -> None:
    """Two web processes on three nodes with small W, S, D and C: one or two nodes and a web process fail at a time."""
    from tests.faults.cluster import store_on  # noqa: PLC0415 - only who uses it needs the driver

    span = Span(deadline=1.0, delay=2.5)
    store = store_on(cassandra_nodes, span, difference=0.5, row_age=1.0)
    check_result = Experiment(tmp_path, store, seed=1, slowness=4.0).run(cassandra_acts(span), limits=LIMITS, rest=0.7)
    record_property(PROPERTY, str(check_result.counts))
    assert check_result.violations == [], explain(check_result)
    least = {"acknowledged": 1000, "refused": 8, "unknown": 8, "none_late": 1, "shown": 3000, "during_faults": 50}
    assert vacuous(check_result.counts, least) == [], explain(check_result)
