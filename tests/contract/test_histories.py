"""In any order of operations, a store does what a naive model of the contract does."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.backends import Backend, Clock, StoreLocation
from tests.contract.histories import Histories

QUIET = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]


def check(beside: StoreLocation, backend: Backend, *, histories: int, steps: int, same: bool) -> None:
    """Runs random histories of up to a number of steps; fewer where a step is a round trip to a server.

    Args:
        beside: The location beside which each history gets its own.
        backend: The kind of the store.
        histories: Number of histories.
        steps: Max steps of each history.
        same: Whether each run has the same histories, so that a change is judged by its own effect.

    Two stores take turns if their ids ascend together, as the model knows no other order.
    """
    together = "one_generator" in backend.capabilities
    histories = histories if together else histories // 8
    # Finding the shortest failing history takes hours if every step asks a server.
    phases = tuple(Phase) if together else (Phase.explicit, Phase.generate)
    limits = settings(
        max_examples=histories,
        stateful_step_count=steps,
        deadline=None,
        derandomize=same,
        suppress_health_check=QUIET,
        phases=phases,
    )

    class Here(Histories):
        location = beside
        stores = 2 if together else 1
        counts_deletes = "counts_deletes" in backend.capabilities

    run_state_machine_as_test(Here, settings=limits)


def test_short_histories(location: StoreLocation, backend: Backend, clock: Clock) -> None:
    """Runs many histories of a few dozen steps."""
    check(location, backend, histories=24, steps=30, same=True)


@pytest.mark.slow
def test_long_histories(location: StoreLocation, backend: Backend, clock: Clock) -> None:
    """Runs more and longer histories, different ones at every run."""
    check(location, backend, histories=400, steps=80, same=False)
