"""ZooKeeper servers as plain JVMs."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from deploy.local import jars, java, logback
from deploy.local.addresses import Block, claim
from deploy.local.cluster import Cluster, Home
from deploy.local.server import START_SECONDS, Server

MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
CLIENT_PORT, QUORUM_PORT, ELECTION_PORT = 2181, 2888, 3888

QUIET = ("org.apache.zookeeper.server.NIOServerCnxn", "org.apache.zookeeper.server.command")


@dataclass(frozen=True)
class ZooKeeperOptions:
    """Options of servers.

    Args:
        heap: Max heap, in the JVM's notation: ``128m``.
        tick_ms: ZooKeeper's unit of time, in milliseconds. Clients can choose session timeouts of 2 to 20 ticks.
        settings: Further settings of ``zoo.cfg``, which override the ones made here.
        jvm_options: Further options of the JVM.
    """

    heap: str = "128m"
    tick_ms: int = 500
    settings: Mapping[str, str | int] = field(default_factory=dict)
    jvm_options: tuple[str, ...] = ()


@dataclass(frozen=True)
class Place:
    """Address, ports and directory of one server. The servers share an address, and have consecutive ports.

    Args:
        index: Number from 0; the server's id is one more.
        servers: Number of servers.
        address: Address of all servers.
        client_port: Port for clients of this server.
        quorum_port: Quorum port of the first server.
        election_port: Election port of the first server.
        directory: Directory of this server.
    """

    index: int
    servers: int
    address: str
    client_port: int
    quorum_port: int
    election_port: int
    directory: Path


def render(place: Place, options: ZooKeeperOptions) -> str:
    lines: dict[str, str | int] = {
        "tickTime": options.tick_ms,
        "initLimit": 10,
        "syncLimit": 5,
        "dataDir": str(place.directory / "data"),
        "clientPort": place.client_port,
        "clientPortAddress": place.address,
        "maxClientCnxns": 0,
        "admin.enableServer": "false",
        "4lw.commands.whitelist": "*",
    }
    if place.servers > 1:
        for other in range(place.servers):
            both = f"{place.quorum_port + other}:{place.election_port + other}"
            lines[f"server.{other + 1}"] = f"{place.address}:{both}"
    return "".join(f"{name}={value}\n" for name, value in (lines | dict(options.settings)).items())


def parse_mode(answer: str) -> str | None:
    """Returns the mode in an answer to ``srvr``: leader, follower or standalone; None if it does not serve clients."""
    for line in answer.splitlines():
        name, _, value = line.partition(": ")
        if name == "Mode":
            return value.strip()
    return None


class ZooKeeperNode(Server):
    """One server of an ensemble, or the only one."""

    def __init__(self, place: Place, options: ZooKeeperOptions, *, remove: Path | None) -> None:
        name = f"zookeeper {place.address}:{place.client_port}"
        super().__init__(name, place.address, place.directory, remove=remove)
        self.port = place.client_port
        self._place = place
        self._options = options

    def command(self) -> Sequence[str]:
        data, settings, logging = (self.directory / name for name in ("data", "zoo.cfg", "logback.xml"))
        scratch = self.directory / "tmp"
        data.mkdir(exist_ok=True)
        scratch.mkdir(exist_ok=True)
        (data / "myid").write_text(f"{self._place.index + 1}\n", "utf-8")
        settings.write_text(render(self._place, self._options), "utf-8")
        logging.write_text(logback.render(self.log, QUIET), "utf-8")
        return [
            str(java.find_java()),
            f"-Xmx{self._options.heap}",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-XX:-UsePerfData",
            f"-Djava.io.tmpdir={scratch}",
            f"-Dlogback.configurationFile={logging.as_uri()}",
            "-Dzookeeper.jmx.log4j.disable=true",
            *self._options.jvm_options,
            "-cp",
            f"{jars.fetch_jars(jars.ZOOKEEPER)}/*",
            MAIN,
            str(settings),
        ]

    def ask(self, word: str) -> str:
        """Returns the answer to one of ZooKeeper's four-letter words, such as ``srvr`` or ``cons``.

        Raises:
            OSError: The server cannot be reached.
        """
        with socket.create_connection((self.address, self.port), 1.0) as connection:
            connection.sendall(word.encode())
            return b"".join(iter(lambda: connection.recv(65536), b"")).decode()

    @property
    def mode(self) -> str | None:
        """The present mode: leader, follower or standalone; None while it does not serve clients."""
        try:
            return parse_mode(self.ask("srvr"))
        except OSError:
            return None

    def answers(self) -> bool:
        """Returns whether the server serves clients. In an ensemble it needs a leader for that."""
        return self.mode is not None


class ZooKeeperEnsemble(Cluster[ZooKeeperNode]):
    """ZooKeeper servers that serve clients."""

    @property
    def connect_string(self) -> str:
        """The addresses for clients: ``address:port,...``."""
        return ",".join(f"{node.address}:{node.port}" for node in self.nodes)

    @property
    def leader(self) -> ZooKeeperNode | None:
        """The present leader; None while the servers have not agreed on one. A single server is its own leader."""
        return next((node for node in self.nodes if node.mode in {"leader", "standalone"}), None)


def start_zookeeper(
    nodes: int = 1,
    options: ZooKeeperOptions | None = None,
    *,
    keep: Path | None = None,
    block: Block | None = None,
    seconds: float = START_SECONDS,
) -> ZooKeeperEnsemble:
    """Starts one or three servers and waits until all serve clients.

    Args:
        nodes: Number of servers.
        options: Options of the servers; the defaults if None.
        keep: A directory for data and logs that is kept. If it has the data of as many servers, they are used.
        block: Claimed addresses; the next free ones if None. They are released when the ensemble is closed.
        seconds: Max time until all servers serve clients.

    Raises:
        ServersError: The jars cannot be fetched, Java or free addresses are missing, or a server did not start.
    """
    options = options or ZooKeeperOptions()
    java.find_java()
    jars.fetch_jars(jars.ZOOKEEPER)
    block = block or claim(list_ports(nodes))
    home = Home("zookeeper", keep)
    places = [
        Place(
            index=index,
            servers=nodes,
            address=block.address(0),
            client_port=block.port(CLIENT_PORT) + index,
            quorum_port=block.port(QUORUM_PORT),
            election_port=block.port(ELECTION_PORT),
            directory=home.path / f"server{index + 1}",
        )
        for index in range(nodes)
    ]
    ensemble = ZooKeeperEnsemble(
        home, block, [ZooKeeperNode(place, options, remove=home.path_to_remove) for place in places]
    )
    ensemble.start(seconds)
    return ensemble


def list_ports(nodes: int) -> list[tuple[int, int]]:
    """Returns the ports of servers, all on the first address, for :func:`deploy.local.addresses.claim`."""
    return [(0, port + index) for index in range(nodes) for port in (CLIENT_PORT, QUORUM_PORT, ELECTION_PORT)]
