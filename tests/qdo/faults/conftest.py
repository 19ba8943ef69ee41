"""The coordination services of the runs."""

from __future__ import annotations

import pytest

from tests.qdo.faults.servers.services import Service, ServiceGroups


@pytest.fixture(params=["service", pytest.param("zookeeper", marks=pytest.mark.slow)])
def service(request: pytest.FixtureRequest) -> Service:
    """Each coordination service in turn, with nothing in it."""
    if request.param == "service":
        return ServiceGroups()
    from tests.qdo.faults.servers.ensemble import ZooKeeperService  # noqa: PLC0415 - only who uses it needs the driver

    return ZooKeeperService(request.getfixturevalue("zookeeper_nodes"))
