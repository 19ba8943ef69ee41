"""A group's promises hold for a quarter of a minute of faults, of workers and of their coordination."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.qdo.faults.checking.counts import vacuous
from tests.qdo.faults.conftest import PROPERTY
from tests.qdo.faults.experiment import Experiment, explain
from tests.qdo.faults.servers.services import LocalService

if TYPE_CHECKING:
    from tests.servers.plugin import ZooKeeperEnsemble

Tell = Callable[[str, object], None]

SLOTS = ["w1", "w2", "w3", "w4", "w5"]
SEED, EVENTS = 14870, 16
"""This seed has something of everything that is asked for below."""
LEAST_OF_EACH = {"join": 3, "leave": 1, "kill": 2, "pause": 1, "expire": 2, "cut": 1, "messages": 250}


def settings(slot: str, worker: str) -> dict[str, object]:
    """Workers differ in where handlers run; some have names that they keep, and are waited for when they are gone."""
    runs = {"w2": "tasks", "w5": "processes"}.get(slot, "threads")
    return {"runs": runs, "member": slot if slot in {"w1", "w4"} else None, "grace": 1.0}


def test_local(tmp_path: Path, record_property: Tell) -> None:
    """Workers of one machine that coordinate by a file."""
    service = LocalService(tmp_path / "coordination.sqlite3")
    check_result = Experiment(tmp_path, service, SEED, settings=settings).run(SLOTS, EVENTS)
    record_property(PROPERTY, str(check_result.counts))
    assert check_result.violations == [], explain(check_result)
    assert vacuous(check_result.counts, events=EVENTS, **LEAST_OF_EACH) == []


@pytest.mark.slow
def test_zookeeper(tmp_path: Path, record_property: Tell, zookeeper_nodes: ZooKeeperEnsemble) -> None:
    """Workers that coordinate by three servers of ZooKeeper, which are killed and stopped too."""
    from tests.qdo.faults.servers.ensemble import ZooKeeperService  # noqa: PLC0415 - only who uses it needs the driver

    with contextlib.closing(ZooKeeperService(zookeeper_nodes, apart=SLOTS[1:3])) as service:
        check_result = Experiment(tmp_path, service, SEED, settings=settings).run(SLOTS, EVENTS)
    record_property(PROPERTY, str(check_result.counts))
    assert check_result.violations == [], explain(check_result)
    assert vacuous(check_result.counts, events=EVENTS, leader=1, hush=1, silence=1, **LEAST_OF_EACH) == []
