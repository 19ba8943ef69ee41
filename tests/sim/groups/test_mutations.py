"""Each mechanism that keeps groups in order is needed: without it a history breaks a guarantee."""

from __future__ import annotations

import pytest

from tests.sim.groups.served import mutations as served
from tests.sim.groups.storm import play
from tests.sim.groups.trees import mutations as trees
from tests.sim.groups.trees.mutations import notifying_late
from tests.sim.groups.trees.storm import TreeStorm
from tests.sim.playing import find_violations, patched

MUTATIONS = {**trees.MUTATIONS, **served.MUTATIONS}


def test_late_calls_do_nothing() -> None:
    """A call of a former ownership after the present one has begun changes nothing."""
    with patched([notifying_late]):
        assert find_violations(range(53, 93, 4), play(TreeStorm)) == []


@pytest.mark.parametrize("name", MUTATIONS)
def test_mechanism_is_needed(name: str) -> None:
    """Without any one of the mechanisms its history breaks a guarantee."""
    assert MUTATIONS[name].find_violations(), f"find another seed for: {name}"
