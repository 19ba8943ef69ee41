"""The guarantees hold while web processes and nodes are killed and paused at random for minutes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.faults.checking.checker import Limits
from tests.faults.checking.counts import vacuous
from tests.faults.conftest import PROPERTY
from tests.faults.experiment import Experiment, Store, explain
from tests.faults.nemesis import Span, fault_minutes, in_minutes, random_acts

if TYPE_CHECKING:
    from deploy.local import CassandraCluster

Record = Callable[[str, object], None]

WEBS = ["web-1", "web-2"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_sqlite_for_long(tmp_path: Path, record_property: Record, seed: int) -> None:
    """Two services on one SQLite store, for more than a minute."""
    store = Store(options=(), span=Span(deadline=0.5, delay=1.0))
    acts = random_acts(seed, WEBS, [], store.span, 75.0)
    check_result = Experiment(tmp_path, store, seed).run(acts, limits=Limits(grace=2.0), rest=0.5)
    record_property(PROPERTY, str(check_result.counts))
    assert check_result.violations == [], explain(check_result)
    assert vacuous(check_result.counts, {"acknowledged": 3000, "unknown": 10, "during_faults": 300}) == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1])
def test_cassandra_for_long(
    tmp_path: Path, record_property: Record, cassandra_nodes: CassandraCluster, nodes_keyspace: str, seed: int
) -> None:
    """Two web processes on three nodes with the default W, S, D and C."""
    from tests.faults.cluster import store_on  # noqa: PLC0415 - only who uses it needs the driver

    store = store_on(cassandra_nodes, nodes_keyspace, Span(deadline=3.0, delay=5.0), difference=1.0, row_age=1.0)
    acts = random_acts(seed, WEBS, list(store.nodes), store.span, 60 * fault_minutes())
    check_result = Experiment(tmp_path, store, seed, slowness=2.0).run(acts, limits=Limits(calm=3.0), rest=2.0)
    record_property(PROPERTY, str(check_result.counts))
    assert check_result.violations == [], explain(check_result)
    least = {"acknowledged": 4000, "refused": 3, "unknown": 8, "none_late": 2, "during_faults": 800}
    assert vacuous(check_result.counts, in_minutes(least)) == [], explain(check_result)
