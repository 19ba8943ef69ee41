"""Each mechanism that keeps groups in order is needed: without it a history breaks a guarantee."""

from __future__ import annotations

import pytest

from qdo.consumer.rebalance.partition_table import PartitionTable
from tests.replacing import replace
from tests.sim.groups.served import mutations as served
from tests.sim.groups.storm import play
from tests.sim.groups.trees import mutations as trees
from tests.sim.groups.trees.mutations import not_waiting_for_lost
from tests.sim.groups.trees.storm import TreeStorm
from tests.sim.playing import find_violations

MUTATIONS = {**trees.MUTATIONS, **served.MUTATIONS}


def test_late_calls_do_nothing() -> None:
    """A call of a former ownership after the present one has begun changes nothing."""
    with replace(PartitionTable._notify_lost, not_waiting_for_lost):
        assert find_violations(range(53, 93, 4), play(TreeStorm)) == []


@pytest.mark.parametrize("name", MUTATIONS)
def test_mechanism_is_needed(name: str) -> None:
    """Without any one of the mechanisms its history breaks a guarantee."""
    assert MUTATIONS[name].find_violations(), f"find another seed for: {name}"
