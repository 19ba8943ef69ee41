"""Real Cassandra and ZooKeeper servers for the tests: a plugin with fixtures that start them when first requested.

Session fixtures, shared by all tests. A test creates a keyspace (:func:`unique_name`) or a chroot of its own there:

* ``cassandra``: one node; ``cassandra_cluster``: three. Both have ``contact_points`` (addresses) and ``port``.
* ``zookeeper``: one server; ``zookeeper_ensemble``: three. Both have ``connect_string``.

Fixtures for a test that breaks servers. Afterwards, killed or paused servers are restored:

* ``cassandra_nodes``: the shared three as a :class:`deploy.local.CassandraCluster`. ``cluster.nodes[i]`` has
  ``address``, ``pid``, ``alive``, ``kill()`` (SIGKILL), ``stop()`` (SIGTERM), ``pause()`` and ``resume()``, ``start()``
  (on its old data, until it answers CQL), ``log_tail()``, and ``nodetool("flush")`` if its options allow it.
  ``cluster.wait_until_settled()`` waits until all nodes see each other.
* ``zookeeper_nodes``: the shared three as a :class:`deploy.local.ZooKeeperEnsemble`; further ``cluster.leader`` and a
  node's ``mode``.

Servers with other options are started and closed by the test or its fixture. It also requests the fixture ``servers``,
so that it is skipped if servers are not wanted::

    options = CassandraOptions(commitlog_sync="batch", settings={"tombstone_failure_threshold": 500})
    with start_cassandra(1, options) as own:
        own.contact_points, own.port, own.nodes[0].pause()

Processes of pytest-xdist share the single servers (:mod:`tests.servers.shared`). Groups of three are there to be
broken, and belong to the process whose tests break them.

The source of the shared servers (:func:`choose_source`): ``QUEUEY_TEST_CASSANDRA=host1,host2[:port]`` and
``QUEUEY_TEST_ZOOKEEPER=host:port,...`` name running ones; otherwise a Docker engine runs single ones, if it answers;
otherwise they are processes of this machine. Servers that tests break are always processes of this machine, or the test
is skipped because only addresses were given. A server that cannot start fails its tests. ``--without-servers`` skips
them.

The report of a failed test has what the servers logged during it.
"""

from __future__ import annotations

import contextlib
import enum
import os
import uuid
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import pytest

from deploy.local import (
    CassandraCluster,
    CassandraOptions,
    ServersError,
    Tls,
    ZooKeeperEnsemble,
    ZooKeeperOptions,
    jars,
    running,
    start_cassandra,
    start_zookeeper,
)
from deploy.local.cassandra import NATIVE_PORT
from deploy.local.server import Server
from tests.servers import containers
from tests.servers.shared import SharedServer, SharedServers, request_server

__all__ = [
    "Cassandra",
    "CassandraCluster",
    "CassandraOptions",
    "ServersError",
    "Source",
    "Tls",
    "ZooKeeper",
    "ZooKeeperEnsemble",
    "ZooKeeperOptions",
    "choose_source",
    "start_cassandra",
    "start_zookeeper",
    "unique_name",
]

CASSANDRA_VARIABLE = "QUEUEY_TEST_CASSANDRA"
ZOOKEEPER_VARIABLE = "QUEUEY_TEST_ZOOKEEPER"
CASSANDRA_IMAGE = "cassandra:5.0"
ZOOKEEPER_IMAGE = "zookeeper:3.9"
PATIENT_NODE = {
    f"{what}_timeout": "60s"
    for what in (
        *("read_request", "range_request", "write_request", "counter_write_request", "truncate_request", "request"),
        *("cas_contention", "native_transport"),
    )
}
"""Timeouts of a node that tests share. Long, because the machine may stand still for seconds."""
LASTING = ZooKeeperOptions(heap="512m", settings={"maxSessionTimeout": 30_000})
"""Options of the server that tests share: sessions may be longer than the default maximum of ten seconds (20 ticks),
and the heap has room for the nodes of all tests, some of which create a hundred thousand."""
LOG_SIZES = pytest.StashKey[dict[str, int]]()
SHARED = pytest.StashKey[SharedServers]()
"""The shared servers, in the controlling or only process."""
FOUND = pytest.StashKey[dict[str, SharedServer]]()
"""The shared servers that tests of this process have requested."""


class Cassandra(Protocol):
    """A running cluster."""

    @property
    def contact_points(self) -> list[str]:
        """Addresses of nodes."""

    @property
    def port(self) -> int:
        """The port for clients, the same on all nodes."""


class ZooKeeper(Protocol):
    """A running ensemble."""

    @property
    def connect_string(self) -> str:
        """The addresses for clients: ``address:port,...``."""


@dataclass(frozen=True)
class CassandraAddresses:
    """A cluster that is run by others."""

    contact_points: list[str]
    port: int

    @classmethod
    def parse(cls, text: str) -> CassandraAddresses:
        """Parses ``host1,host2[:port]``. The last port named is used for all hosts, else the default one."""
        hosts, port = [], NATIVE_PORT
        for part in text.split(","):
            host, _, number = part.strip().partition(":")
            hosts.append(host)
            port = int(number) if number else port
        return cls(hosts, port)


@dataclass(frozen=True)
class ZooKeeperAddresses:
    """An ensemble that is run by others."""

    connect_string: str


class Source(enum.Enum):
    """The source of servers."""

    GIVEN = "given"
    DOCKER = "docker"
    JVM = "jvm"


def choose_source(variable: str, environment: Mapping[str, str], nodes: int, docker: Callable[[], bool]) -> Source:
    """Returns the source of servers: running ones if the variable names any, else Docker for one, else processes.

    Args:
        variable: The environment variable that names running servers.
        environment: The environment.
        nodes: Number of servers.
        docker: Returns whether Docker can start one. Called only if that matters.
    """
    if environment.get(variable):
        return Source.GIVEN
    return Source.DOCKER if nodes == 1 and docker() else Source.JVM


def unique_name(prefix: str = "t") -> str:
    """Returns a fresh name that is valid for a keyspace without quotes."""
    return f"{prefix}_{uuid.uuid4().hex[:16]}"


def find_needed_jars(fixtures: Collection[str]) -> set[jars.Bundle]:
    """Returns the bundles of the servers that fixtures are named after; both if only ``servers`` is requested."""
    kinds = {"cassandra": jars.CASSANDRA, "zookeeper": jars.ZOOKEEPER}
    named = {kinds[name.partition("_")[0]] for name in fixtures if name.partition("_")[0] in kinds}
    return named or (set(kinds.values()) if "servers" in fixtures else set())


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--without-servers",
        action="store_true",
        help="skip the tests that need Cassandra or ZooKeeper instead of failing",
    )


def fixture_names(item: pytest.Item) -> set[str]:
    """Returns the test's fixtures and its string parameters, as a parameter may be a fixture's name."""
    parameters = getattr(getattr(item, "callspec", None), "params", {}).values()
    return {*getattr(item, "fixturenames", ()), *(value for value in parameters if isinstance(value, str))}


def pytest_collection_finish(session: pytest.Session) -> None:
    """Downloads the jars of the servers that collected tests need, so that no test's time includes it.

    A test's fixture reports the error if that failed.
    """
    config = session.config
    if config.getoption("--without-servers") or config.getoption("--collect-only"):
        return
    for bundle in {bundle for item in session.items for bundle in find_needed_jars(fixture_names(item))}:
        with contextlib.suppress(ServersError):  # the fixture that needs it reports the error
            jars.fetch_jars(bundle)


def pytest_configure(config: pytest.Config) -> None:
    config.stash[FOUND] = {}
    if not hasattr(config, "workerinput"):
        config.stash[SHARED] = SharedServers({"cassandra": _start_cassandra, "zookeeper": _start_zookeeper})


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:  # noqa: ANN401 - xdist ships no types
    """Passes the socket of the shared servers to a worker process."""
    node.workerinput["servers"] = node.config.stash[SHARED].listen()


def pytest_unconfigure(config: pytest.Config) -> None:
    if shared := config.stash.get(SHARED, None):
        shared.close()


def _start_cassandra(opened: contextlib.ExitStack) -> SharedServer:
    if choose_source(CASSANDRA_VARIABLE, os.environ, 1, lambda: containers.offers(CASSANDRA_IMAGE)) is Source.DOCKER:
        host, port = opened.enter_context(containers.cassandra(CASSANDRA_IMAGE))
        return SharedServer(f"{host}:{port}")
    options = CassandraOptions(restarts=False, settings=PATIENT_NODE)
    cluster = opened.enter_context(start_cassandra(1, options))
    return SharedServer(f"{cluster.contact_points[0]}:{cluster.port}", cluster.nodes[0].log)


def _start_zookeeper(opened: contextlib.ExitStack) -> SharedServer:
    if choose_source(ZOOKEEPER_VARIABLE, os.environ, 1, lambda: containers.offers(ZOOKEEPER_IMAGE)) is Source.DOCKER:
        host, port = opened.enter_context(containers.zookeeper(ZOOKEEPER_IMAGE))
        return SharedServer(f"{host}:{port}")
    ensemble = opened.enter_context(start_zookeeper(1, LASTING))
    return SharedServer(ensemble.connect_string, ensemble.nodes[0].log)


def _get_shared(config: pytest.Config, name: str) -> SharedServer:
    servers = config.stash[FOUND]
    if name not in servers:
        worker = getattr(config, "workerinput", None)
        servers[name] = request_server(worker["servers"], name) if worker else config.stash[SHARED].start(name)
    return servers[name]


def servers_with_logs(config: pytest.Config) -> dict[str, Server | SharedServer]:
    own = {node.name: node for cluster in running() for node in cluster.nodes}
    return config.stash[FOUND] | own


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Records the sizes of the servers' logs before the test."""
    item.stash[LOG_SIZES] = {name: server.log_size() for name, server in servers_with_logs(item.config).items()}
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Adds what the servers logged during a failed test to its report."""
    report = yield
    if report.failed:
        before = item.stash.get(LOG_SIZES, {})
        for name, server in servers_with_logs(item.config).items():
            if text := server.log_tail(since=before.get(name, 0)):
                report.sections.append((f"Log of {name}", text))
    return report


@pytest.fixture(scope="session")
def servers(request: pytest.FixtureRequest) -> Iterator[contextlib.ExitStack]:
    """Closed at the end of the session. Skips the test with ``--without-servers``."""
    if request.config.getoption("--without-servers"):
        pytest.skip("needs servers, and --without-servers is set")
    with contextlib.ExitStack() as opened:
        yield opened


@pytest.fixture(scope="session")
def cassandra(pytestconfig: pytest.Config, servers: contextlib.ExitStack) -> Cassandra:
    """One node, or the cluster named by the environment."""
    address = os.environ.get(CASSANDRA_VARIABLE)
    return CassandraAddresses.parse(address or _get_shared(pytestconfig, "cassandra").address)


@pytest.fixture(scope="session")
def cassandra_cluster(servers: contextlib.ExitStack) -> Cassandra:
    """Three nodes, or the cluster named by the environment."""
    if choose_source(CASSANDRA_VARIABLE, os.environ, 3, lambda: False) is Source.GIVEN:
        return CassandraAddresses.parse(os.environ[CASSANDRA_VARIABLE])
    # Tests kill these nodes. With ``periodic`` a killed node loses about the last 200 ms.
    return servers.enter_context(start_cassandra(3, CassandraOptions(commitlog_sync="group")))


@pytest.fixture
def cassandra_nodes(cassandra_cluster: Cassandra) -> Iterator[CassandraCluster]:
    """The three nodes, restored after the test, which breaks them. Skips the test if they are not ours."""
    if not isinstance(cassandra_cluster, CassandraCluster):
        pytest.skip(f"breaks servers, and those of {CASSANDRA_VARIABLE} are not ours")
    yield cassandra_cluster
    cassandra_cluster.restore()


@pytest.fixture(scope="session")
def zookeeper(pytestconfig: pytest.Config, servers: contextlib.ExitStack) -> ZooKeeper:
    """One server, or the ensemble named by the environment."""
    address = os.environ.get(ZOOKEEPER_VARIABLE)
    return ZooKeeperAddresses(address or _get_shared(pytestconfig, "zookeeper").address)


@pytest.fixture(scope="session")
def zookeeper_ensemble(servers: contextlib.ExitStack) -> ZooKeeper:
    """Three servers, or the ensemble named by the environment."""
    if choose_source(ZOOKEEPER_VARIABLE, os.environ, 3, lambda: False) is Source.GIVEN:
        return ZooKeeperAddresses(os.environ[ZOOKEEPER_VARIABLE])
    return servers.enter_context(start_zookeeper(3, LASTING))


@pytest.fixture
def zookeeper_nodes(zookeeper_ensemble: ZooKeeper) -> Iterator[ZooKeeperEnsemble]:
    """The three servers, restored after the test, which breaks them. Skips the test if they are not ours."""
    if not isinstance(zookeeper_ensemble, ZooKeeperEnsemble):
        pytest.skip(f"breaks servers, and those of {ZOOKEEPER_VARIABLE} are not ours")
    yield zookeeper_ensemble
    zookeeper_ensemble.restore()
