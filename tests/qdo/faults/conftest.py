"""The coordination services of the runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.qdo.faults.servers.services import LocalService, Service


@pytest.fixture(params=["local", pytest.param("zookeeper", marks=pytest.mark.slow)])
def service(request: pytest.FixtureRequest, tmp_path: Path) -> Service:
    """Each coordination service in turn, with nothing in it."""
    if request.param == "local":
        return LocalService(tmp_path / "coordination.sqlite3")
    from tests.qdo.faults.servers.ensemble import ZooKeeperService  # noqa: PLC0415 - only who uses it needs the driver

    return ZooKeeperService(request.getfixturevalue("zookeeper_nodes"))
