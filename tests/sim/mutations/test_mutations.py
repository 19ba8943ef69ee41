"""Without any one mechanism, a history of the table breaks a guarantee."""

from __future__ import annotations

import os

import pytest

from tests.sim.mutations.table import MUTATIONS

SEARCH = "SIM_SEARCH" in os.environ
MAX_HISTORIES = 7000
"""Max histories of a search."""


@pytest.mark.parametrize("name", MUTATIONS)
def test_each_mechanism_is_needed(name: str) -> None:
    """The history of the table shows that the mechanism is missing; a stale seed is named."""
    mutation = MUTATIONS[name]
    wrong = mutation.find_violations(range(MAX_HISTORIES) if SEARCH else ())
    assert wrong, f"the history of seed {mutation.seed} does not show it: find another one with SIM_SEARCH=1"
    if SEARCH:
        pytest.fail(f"{name}: {wrong[0]}")
