"""Real Cassandra and ZooKeeper servers for the tests: a plugin with fixtures that start them when first asked for.

Session fixtures, shared by all tests. A test makes a keyspace (:func:`unique_name`) or a chroot of its own there:

* ``cassandra``: one node; ``cassandra_cluster``: three. Both have ``contact_points`` (addresses) and ``port``.
* ``zookeeper``: one server; ``zookeeper_ensemble``: three. Both have ``connect_string``.

Fixtures for one test that breaks things; afterwards whatever was killed or paused is brought back:

* ``cassandra_nodes``: the shared three as a :class:`deploy.local.CassandraCluster`. ``cluster.nodes[i]`` has
  ``address``, ``pid``, ``alive``, ``kill()`` (SIGKILL), ``stop()`` (SIGTERM), ``pause()`` and ``resume()``, ``start()``
  (on the data it left, until it answers CQL), ``log_tail()``, and ``nodetool("flush")`` where its options say so.
  ``cluster.wait_until_settled()`` waits until all nodes see each other.
* ``zookeeper_nodes``: the shared three as a :class:`deploy.local.ZooKeeperEnsemble`; further ``cluster.leader`` and a
  node's ``mode``.

Servers of another make are started and closed by the test or its fixture, which asks for the fixture ``servers`` as
well, so that it is skipped where servers are not wanted::

    options = CassandraOptions(commitlog_sync="batch", settings={"tombstone_failure_threshold": 500})
    with start_cassandra(1, options) as own:
        own.contact_points, own.port, own.nodes[0].pause()

Processes of pytest-xdist share the single ones (:mod:`tests.servers.shared`); three of a kind are there to be broken,
and belong to the process whose tests break them.

Where the shared ones come from (:func:`choose`): ``QUEUEY_TEST_CASSANDRA=host1,host2[:port]`` and
``QUEUEY_TEST_ZOOKEEPER=host:port,...`` name running ones; else a Docker engine runs single ones, if it answers; else
they are processes of this machine. Those that tests break are always processes of this machine, or the test is skipped
because only addresses were given. A server that cannot start fails its tests. ``--without-servers`` skips them.

When a test fails, what the servers logged during it is in the report.
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
from tests.servers.shared import SharedServer, SharedServers, ask

__all__ = [
    "Cassandra",
    "CassandraCluster",
    "CassandraOptions",
    "ServersError",
    "Tls",
    "Way",
    "ZooKeeper",
    "ZooKeeperEnsemble",
    "ZooKeeperOptions",
    "choose",
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
"""What a node that tests share waits for before it gives a request up: the machine may stand still for seconds."""
LASTING = ZooKeeperOptions(heap="512m", settings={"maxSessionTimeout": 30_000})
"""For the server that tests share: sessions longer than the ten seconds (20 ticks) that a server grants by itself, and
room for the nodes of all tests, of which some make a hundred thousand."""
LOG_SIZES = pytest.StashKey[dict[str, int]]()
SHARED = pytest.StashKey[SharedServers]()
"""Of the controlling process, or the only one."""
FOUND = pytest.StashKey[dict[str, SharedServer]]()
"""The shared servers that tests of this process have asked for."""


class Cassandra(Protocol):
    """A cluster that answers."""

    @property
    def contact_points(self) -> list[str]:
        """Addresses of nodes."""

    @property
    def port(self) -> int:
        """The port for clients, the same on all nodes."""


class ZooKeeper(Protocol):
    """An ensemble that answers."""

    @property
    def connect_string(self) -> str:
        """What clients connect to: ``address:port,...``."""


@dataclass(frozen=True)
class CassandraAddresses:
    """A cluster that somebody else runs."""

    contact_points: list[str]
    port: int

    @classmethod
    def parse(cls, text: str) -> CassandraAddresses:
        """Reads ``host1,host2[:port]``; the last port that is named is that of all."""
        hosts, port = [], NATIVE_PORT
        for part in text.split(","):
            host, _, number = part.strip().partition(":")
            hosts.append(host)
            port = int(number) if number else port
        return cls(hosts, port)


@dataclass(frozen=True)
class ZooKeeperAddresses:
    """An ensemble that somebody else runs."""

    connect_string: str


class Way(enum.Enum):
    """Where servers come from."""

    GIVEN = "given"
    DOCKER = "docker"
    JVM = "jvm"


def choose(variable: str, environment: Mapping[str, str], nodes: int, docker: Callable[[], bool]) -> Way:
    """Returns where servers come from.

    Three nodes are there to be broken and reached one by one, which takes processes of this machine.

    Args:
        variable: That names running servers.
        environment: What is set.
        nodes: How many servers are wanted.
        docker: Says if Docker can start one; asked only if that matters.
    """
    if environment.get(variable):
        return Way.GIVEN
    return Way.DOCKER if nodes == 1 and docker() else Way.JVM


def unique_name(prefix: str = "t") -> str:
    """Returns a name that nothing has yet and that Cassandra takes for a keyspace without quotes."""
    return f"{prefix}_{uuid.uuid4().hex[:16]}"


def needed(fixtures: Collection[str]) -> set[jars.Bundle]:
    """Returns the jars that tests with these fixtures may need; both where a test starts servers of its own."""
    kinds = {"cassandra": jars.CASSANDRA, "zookeeper": jars.ZOOKEEPER}
    named = {kinds[name.partition("_")[0]] for name in fixtures if name.partition("_")[0] in kinds}
    return named or (set(kinds.values()) if "servers" in fixtures else set())


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the one way to do without servers."""
    parser.addoption(
        "--without-servers",
        action="store_true",
        help="skip the tests that need Cassandra or ZooKeeper instead of failing",
    )


def names_of(item: pytest.Item) -> set[str]:
    """Returns the names of a test's fixtures and of the parameters that may lead to further ones, such as a store's."""
    parameters = getattr(getattr(item, "callspec", None), "params", {}).values()
    return {*getattr(item, "fixturenames", ()), *(value for value in parameters if isinstance(value, str))}


def pytest_collection_finish(session: pytest.Session) -> None:
    """Fetches what servers are made of before the first test, whose time would have to include it."""
    config = session.config
    if config.getoption("--without-servers") or config.getoption("--collect-only"):
        return
    for bundle in {bundle for item in session.items for bundle in needed(names_of(item))}:
        with contextlib.suppress(ServersError):  # the fixture that needs it will tell
            jars.fetch(bundle)


def pytest_configure(config: pytest.Config) -> None:
    """Readies what starts the shared servers."""
    config.stash[FOUND] = {}
    if not hasattr(config, "workerinput"):
        config.stash[SHARED] = SharedServers({"cassandra": _start_cassandra, "zookeeper": _start_zookeeper})


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:  # noqa: ANN401 - xdist ships no types
    """Says to a worker process where to ask for the shared servers."""
    node.workerinput["servers"] = node.config.stash[SHARED].listen()


def pytest_unconfigure(config: pytest.Config) -> None:
    """Ends the shared servers."""
    if shared := config.stash.get(SHARED, None):
        shared.close()


def _start_cassandra(opened: contextlib.ExitStack) -> SharedServer:
    if choose(CASSANDRA_VARIABLE, os.environ, 1, lambda: containers.offers(CASSANDRA_IMAGE)) is Way.DOCKER:
        host, port = opened.enter_context(containers.cassandra(CASSANDRA_IMAGE))
        return SharedServer(f"{host}:{port}")
    options = CassandraOptions(restarts=False, settings=PATIENT_NODE)
    cluster = opened.enter_context(start_cassandra(1, options))
    return SharedServer(f"{cluster.contact_points[0]}:{cluster.port}", cluster.nodes[0].log)


def _start_zookeeper(opened: contextlib.ExitStack) -> SharedServer:
    if choose(ZOOKEEPER_VARIABLE, os.environ, 1, lambda: containers.offers(ZOOKEEPER_IMAGE)) is Way.DOCKER:
        host, port = opened.enter_context(containers.zookeeper(ZOOKEEPER_IMAGE))
        return SharedServer(f"{host}:{port}")
    ensemble = opened.enter_context(start_zookeeper(1, LASTING))
    return SharedServer(ensemble.connect_string, ensemble.nodes[0].log)


def _shared(config: pytest.Config, name: str) -> SharedServer:
    found = config.stash[FOUND]
    if name not in found:
        worker = getattr(config, "workerinput", None)
        found[name] = ask(worker["servers"], name) if worker else config.stash[SHARED].start(name)
    return found[name]


def logs(config: pytest.Config) -> dict[str, Server | SharedServer]:
    """Returns what keeps a log, by name: servers of this process, and shared ones that its tests use."""
    own = {node.name: node for cluster in running() for node in cluster.nodes}
    return config.stash[FOUND] | own


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Remembers how long the servers' logs were before the test."""
    item.stash[LOG_SIZES] = {name: server.log_size() for name, server in logs(item.config).items()}
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Adds to the report of a failed test what the servers logged since it began."""
    report = yield
    if report.failed:
        before = item.stash.get(LOG_SIZES, {})
        for name, server in logs(item.config).items():
            if text := server.log_tail(since=before.get(name, 0)):
                report.sections.append((f"Log of {name}", text))
    return report


@pytest.fixture(scope="session")
def servers(request: pytest.FixtureRequest) -> Iterator[contextlib.ExitStack]:
    """What is closed at the end of the session; skips where servers are not wanted."""
    if request.config.getoption("--without-servers"):
        pytest.skip("needs servers, and --without-servers is set")
    with contextlib.ExitStack() as opened:
        yield opened


@pytest.fixture(scope="session")
def cassandra(pytestconfig: pytest.Config, servers: contextlib.ExitStack) -> Cassandra:
    """One node, or the cluster that the environment names."""
    given = os.environ.get(CASSANDRA_VARIABLE)
    return CassandraAddresses.parse(given or _shared(pytestconfig, "cassandra").address)


@pytest.fixture(scope="session")
def cassandra_cluster(servers: contextlib.ExitStack) -> Cassandra:
    """Three nodes, or the cluster that the environment names."""
    if choose(CASSANDRA_VARIABLE, os.environ, 3, lambda: False) is Way.GIVEN:
        return CassandraAddresses.parse(os.environ[CASSANDRA_VARIABLE])
    # Tests kill these nodes. With ``periodic`` a node that is killed forgets the last 200 ms or so.
    return servers.enter_context(start_cassandra(3, CassandraOptions(commitlog_sync="group")))


@pytest.fixture
def cassandra_nodes(cassandra_cluster: Cassandra) -> Iterator[CassandraCluster]:
    """The three nodes for a test that breaks them; they are brought back afterwards."""
    if not isinstance(cassandra_cluster, CassandraCluster):
        pytest.skip(f"breaks servers, and those of {CASSANDRA_VARIABLE} are not ours")
    yield cassandra_cluster
    cassandra_cluster.restore()


@pytest.fixture(scope="session")
def zookeeper(pytestconfig: pytest.Config, servers: contextlib.ExitStack) -> ZooKeeper:
    """One server, or the ensemble that the environment names."""
    given = os.environ.get(ZOOKEEPER_VARIABLE)
    return ZooKeeperAddresses(given or _shared(pytestconfig, "zookeeper").address)


@pytest.fixture(scope="session")
def zookeeper_ensemble(servers: contextlib.ExitStack) -> ZooKeeper:
    """Three servers, or the ensemble that the environment names."""
    if choose(ZOOKEEPER_VARIABLE, os.environ, 3, lambda: False) is Way.GIVEN:
        return ZooKeeperAddresses(os.environ[ZOOKEEPER_VARIABLE])
    return servers.enter_context(start_zookeeper(3, LASTING))


@pytest.fixture
def zookeeper_nodes(zookeeper_ensemble: ZooKeeper) -> Iterator[ZooKeeperEnsemble]:
    """The three servers for a test that breaks them; they are brought back afterwards."""
    if not isinstance(zookeeper_ensemble, ZooKeeperEnsemble):
        pytest.skip(f"breaks servers, and those of {ZOOKEEPER_VARIABLE} are not ours")
    yield zookeeper_ensemble
    zookeeper_ensemble.restore()
