"""The guarantees hold while web processes are killed and paused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

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
    assert vacuous(check_result.counts, {"acknowledged": 100, "unknown": 1, "shown": 200, "during_faults": 5}) == []


SPAN = Span(deadline=1.0, delay=2.5)
LATE, LONGER, LONGEST = 1.3 * SPAN.deadline, 1.2 * SPAN.delay, 1.6 * SPAN.delay
"""Seconds, around the times that matter."""
# What web-1 has just sent to node-2 is written and answered when they go on, long after readers have passed.
WRITES_LATE: Act = (Step("pause", "node-2", LONGEST), Step("pause", "web-1", LONGEST, after=0.3))
DEATHS: Act = (
    Step("kill", "node-3", 2.0),
    Step("pause", "web-2", LONGER, after=1.0),
    Step("pause", "node-1", LATE, after=1.5),
    # The node takes a while to come back.
    Step("kill", "web-1", 0.5, after=6.0),
    Step("pause", "node-2", LATE, after=6.0),
)
MORE: list[Act] = [
    (Step("pause", "node-1", LATE), Step("pause", "node-3", LATE)),
    (Step("pause", "node-2", LONGER), Step("pause", "node-3", LONGER)),
]
FEW = {"acknowledged": 100, "refused": 1, "unknown": 1, "shown": 300, "during_faults": 8}
MANY = {"acknowledged": 300, "refused": 3, "unknown": 3, "none_late": 1, "shown": 900, "during_faults": 20}
"""What a run must have seen at least."""


@pytest.mark.parametrize(
    ("acts", "least"),
    [
        pytest.param([WRITES_LATE, DEATHS], FEW, id="two"),
        pytest.param([WRITES_LATE, *MORE, DEATHS, MORE[0]], MANY, marks=pytest.mark.slow, id="five"),
    ],
)
def test_cassandra(
    tmp_path: Path,
    record_property: Record,
    cassandra_nodes: CassandraCluster,
    nodes_keyspace: str,
    acts: list[Act],
    least: dict[str, int],
) -> None:
    """Two web processes on three nodes with small W, S, D and C: one or two nodes and a web process fail at a time."""
    from tests.faults.cluster import store_on  # noqa: PLC0415 - only who uses it needs the driver

    store = store_on(cassandra_nodes, nodes_keyspace, SPAN, difference=0.5, row_age=1.0)
    check_result = Experiment(tmp_path, store, seed=1, slowness=4.0).run(acts, limits=LIMITS, rest=0.7)
    record_property(PROPERTY, str(check_result.counts))
    assert check_result.violations == [], explain(check_result)
    assert vacuous(check_result.counts, least) == [], explain(check_result)
