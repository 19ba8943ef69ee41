"""The model of replicas passes the contract's tests of claim logs."""

from __future__ import annotations

import pytest

from queuey.storage import Store
from tests.contract.claims.test_claim_logs import (  # noqa: F401 - they are run here on the model
    test_appended_in_order,
    test_long_logs_come_in_pages,
    test_newer_snapshots_replace_older,
    test_partitions_and_queues_are_apart,
    test_refused,
    test_snapshots,
    test_truncation,
)
from tests.sim.replicas import Faults, ModelStore, Replicas
from tests.sim.world import Process, Work, World


class Instant(World):
    """A world in which everything happens at once, except timeouts."""

    def after(self, seconds: float, work: Work) -> None:
        if seconds < 1:
            work()


@pytest.fixture
def replicas() -> Replicas:
    """The state shared by all processes, without faults."""
    return Replicas(Instant(0), Faults(slow=1e-9))


@pytest.fixture
def store(replicas: Replicas) -> Store:
    return ModelStore(replicas, Process(replicas.world, 0.0)).store


@pytest.fixture
def other(replicas: Replicas) -> Store:
    return ModelStore(replicas, Process(replicas.world, 0.0)).store
