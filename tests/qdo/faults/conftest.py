"""The coordination services of the runs."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

from tests.qdo.faults.servers.services import Service, ServiceGroups

if TYPE_CHECKING:
    from deploy.local import CassandraCluster
    from tests.faults.webs import MakeStore


@pytest.fixture
def three_nodes(cassandra_nodes: CassandraCluster) -> MakeStore:
    """Returns a function that creates the store of a run on three nodes."""
    from tests.faults.cluster import prepare_store_on  # noqa: PLC0415 - needs the driver
    from tests.servers import keyspaces  # noqa: PLC0415 - needs the driver

    return partial(prepare_store_on, cassandra_nodes, keyspaces.make(cassandra_nodes, 3))


@pytest.fixture(params=["service", pytest.param("zookeeper", marks=pytest.mark.slow)])
def service(request: pytest.FixtureRequest) -> Service:
    """Each coordination service in turn, empty."""
    if request.param == "service":
        return ServiceGroups()
    from tests.qdo.faults.servers.ensemble import ZooKeeperService  # noqa: PLC0415 - needs the driver

    return ZooKeeperService(request.getfixturevalue("zookeeper_nodes"))
