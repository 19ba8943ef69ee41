"""Keyspaces on three nodes, two data centres with a link to cut, and the service of the last release."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import pytest

from tests.faults.webs import MakeStore, Program
from tests.pages import ROOT
from tests.servers.served import environment

if TYPE_CHECKING:
    from deploy.local import CassandraCluster
    from tests.faults.centres import Centres
    from tests.faults.cluster import ProxiedNodes
    from tests.servers.plugin import Cassandra


@pytest.fixture(scope="package")
def nodes_keyspace(cassandra_cluster: Cassandra) -> str:
    """The URL of a keyspace with a copy of everything on each of three nodes. :func:`three_nodes` empties it."""
    from tests.servers import keyspaces  # noqa: PLC0415 - most tests here do not need the driver

    return keyspaces.make(cassandra_cluster, 3)


@pytest.fixture(scope="package")
def package_centres(servers: contextlib.ExitStack) -> Iterator[Centres]:
    """Two data centres of one node each, for all tests of this package."""
    from tests.faults.centres import start_centres  # noqa: PLC0415 - most tests here do not need the driver

    with start_centres(1) as centres:
        yield centres


@pytest.fixture(scope="package")
def centres_keyspace(package_centres: Centres) -> str:
    """The URL of a keyspace with a copy of everything in each data centre."""
    from tests.faults.centres import make_keyspace_on  # noqa: PLC0415 - most tests here do not need the driver

    return make_keyspace_on(package_centres)


@pytest.fixture
def centres(package_centres: Centres) -> Iterator[Centres]:
    """The two data centres, for a test that cuts their link. Link and nodes are restored afterwards."""
    yield package_centres
    package_centres.link.heal()
    package_centres.cluster.restore()


@pytest.fixture
def three_nodes(cassandra_nodes: CassandraCluster, nodes_keyspace: str) -> MakeStore:
    """Returns a function that empties the keyspace and makes the store of a run on three nodes."""
    from tests.faults.cluster import prepare_store_on  # noqa: PLC0415 - most tests here do not need the driver

    return partial(prepare_store_on, cassandra_nodes, nodes_keyspace)


@pytest.fixture(scope="package")
def package_proxied_nodes(servers: contextlib.ExitStack) -> Iterator[ProxiedNodes]:
    """Three nodes behind proxies, for all tests of this package."""
    from tests.faults.cluster import start_proxied  # noqa: PLC0415 - most tests here do not need the driver

    with start_proxied(3) as nodes:
        yield nodes


@pytest.fixture(scope="package")
def proxied_keyspace(package_proxied_nodes: ProxiedNodes) -> str:
    """The URL of a keyspace with a copy of everything on each node behind a proxy. It is emptied for each test."""
    from tests.servers import keyspaces  # noqa: PLC0415 - most tests here do not need the driver

    return keyspaces.make(package_proxied_nodes.cluster, 3)


@pytest.fixture
def proxied_nodes(package_proxied_nodes: ProxiedNodes) -> Iterator[ProxiedNodes]:
    """The nodes and proxies, for a test that breaks them. They are restored afterwards."""
    yield package_proxied_nodes
    for proxy in package_proxied_nodes.proxies.values():
        proxy.heal()
        proxy.resume()
    package_proxied_nodes.cluster.restore()


@pytest.fixture
def three_proxied_nodes(proxied_nodes: ProxiedNodes, proxied_keyspace: str) -> MakeStore:
    """Returns a function that empties the keyspace and makes the store of a run on three nodes behind proxies."""
    from tests.faults.cluster import prepare_store_on  # noqa: PLC0415 - most tests here do not need the driver

    return partial(prepare_store_on, proxied_nodes.cluster, proxied_keyspace, proxies=proxied_nodes.proxies)


@pytest.fixture(scope="package")
def release(tmp_path_factory: pytest.TempPathFactory) -> Program:
    """The service of the last record, from its commit, with the packages of this environment and all schema files."""
    from tests.releases import recording  # noqa: PLC0415 - it imports both products

    newest = recording.folders()[-1]
    tree = tmp_path_factory.mktemp("release")
    recording.check_out(newest, tree)
    # A running release keeps working in a keyspace that is migrated meanwhile, but it does not start in one with
    # unknown changes. So it gets the schema files of later changes, and nothing else of them.
    for change in (ROOT / "cql").glob("*.cql"):
        if not (tree / "cql" / change.name).exists():
            shutil.copy(change, tree / "cql")
    # With -P Python does not import from the working directory, which has this version.
    program = Program((sys.executable, "-P", "-m", "queuey"), {"PYTHONPATH": str(tree)})
    command, variables = [*program.words, "--version"], environment(**program.variables)
    completed = subprocess.run(command, env=variables, capture_output=True, text=True, check=True, timeout=100.0)
    assert recording.read(newest).version in completed.stdout
    return program
