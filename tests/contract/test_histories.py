"""Whatever is done to a store in whatever order, it does what a naive model of the contract says."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.backends import Clock, Site
from tests.contract.histories import Histories

QUIET = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]


def check(site: Site, *, histories: int, steps: int) -> None:
    """Runs random histories of up to a number of steps."""
    limits = settings(max_examples=histories, stateful_step_count=steps, deadline=None, suppress_health_check=QUIET)

    class Here(Histories):
        place = site

    run_state_machine_as_test(Here, settings=limits)


@pytest.mark.timeout(420)  # passes in seconds; a failure takes its time to find the shortest history that shows it
def test_short_histories(site: Site, clock: Clock) -> None:
    """Many histories of a few dozen steps."""
    check(site, histories=200, steps=30)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_long_histories(site: Site, clock: Clock) -> None:
    """Fewer, longer and deeper ones."""
    check(site, histories=1000, steps=80)
