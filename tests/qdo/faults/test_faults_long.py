"""A group's promises hold for minutes of faults, of workers and of their coordination."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.faults.nemesis import fault_minutes, in_minutes
from tests.qdo.faults.checking.counts import vacuous
from tests.qdo.faults.conftest import PROPERTY
from tests.qdo.faults.experiment import Experiment, explain
from tests.qdo.faults.servers.services import LocalService, Service
from tests.qdo.faults.test_faults import SLOTS, settings

if TYPE_CHECKING:
    from tests.servers.plugin import ZooKeeperEnsemble

Tell = Callable[[str, object], None]

EVENTS_A_MINUTE = 55
LEAST = {"join": 20, "leave": 5, "kill": 10, "pause": 10, "expire": 10, "cut": 3, "mute": 1}
LEAST |= {"events": 200, "messages": 10_000, "twice": 50, "lost": 20}
LEAST_OF_SERVERS = {"leader": 3, "hush": 3, "silence": 3}


def run(directory: Path, service: Service, seed: int, tell: Tell, least: dict[str, int]) -> None:
    """Runs for as long as the events take, and demands that no rule is broken and that enough happened."""
    events = round(EVENTS_A_MINUTE * fault_minutes())
    check_result = Experiment(directory, service, seed, settings=settings).run(SLOTS, events)
    tell(PROPERTY, f"seed {seed}: {check_result.counts}")
    assert check_result.violations == [], explain(check_result)
    assert vacuous(check_result.counts, **in_minutes(least)) == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_local_for_long(tmp_path: Path, record_property: Tell, seed: int) -> None:
    """Workers of one machine that coordinate by a file."""
    run(tmp_path, LocalService(tmp_path / "coordination.sqlite3"), seed, record_property, LEAST)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_zookeeper_for_long(
    tmp_path: Path, record_property: Tell, zookeeper_nodes: ZooKeeperEnsemble, seed: int
) -> None:
    """Workers that coordinate by three servers of ZooKeeper, which are killed and stopped too."""
    from tests.qdo.faults.servers.ensemble import ZooKeeperService  # noqa: PLC0415 - only who uses it needs the driver

    with contextlib.closing(ZooKeeperService(zookeeper_nodes, apart=SLOTS[1:3])) as service:
        run(tmp_path, service, seed, record_property, LEAST | LEAST_OF_SERVERS)
