"""Whatever is done to a store in whatever order, it does what a naive model of the contract says."""

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
        beside: Each history gets a location of its own beside this one.
        backend: The store's kind.
        histories: How many.
        steps: Of each at most.
        same: The same ones at every run, so that a change is judged by what it changes.

    Two stores take turns if their ids ascend together; the model knows no other order.
    """
    together = "one_generator" in backend.capabilities
    histories = histories if together else histories // 8
    # Finding the shortest history that fails takes hours where every step asks a server.
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
    """Many histories of a few dozen steps."""
    check(location, backend, histories=40, steps=30, same=True)


@pytest.mark.slow
def test_long_histories(location: StoreLocation, backend: Backend, clock: Clock) -> None:
    """More and deeper ones, others at every run."""
    check(location, backend, histories=400, steps=80, same=False)
