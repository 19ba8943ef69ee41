"""Real servers here: they start, break as told, come back with their data, and are gone with who started them."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from cassandra import ConsistencyLevel
from cassandra.auth import PlainTextAuthProvider
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, Session
from cassandra.policies import ConstantReconnectionPolicy, WhiteListRoundRobinPolicy
from kazoo.client import KazooClient

from deploy.local import StartFailed, cql
from tests.servers.plugin import (
    Cassandra,
    CassandraCluster,
    CassandraOptions,
    Tls,
    ZooKeeper,
    ZooKeeperEnsemble,
    start_cassandra,
    start_zookeeper,
    unique_name,
)

ROOT = Path(__file__).parent.parent.parent
TLS = Path(__file__).parent / "tls"
SECONDS = 60.0

PARENT = """
import os, signal, sys, time
from deploy.local import start_zookeeper
ensemble = start_zookeeper(1)
if os.fork() == 0:  # holds every pipe of its parent open
    time.sleep(300)
print(ensemble.nodes[0].pid, ensemble.home.path, flush=True)
time.sleep(300)
"""


def until(happened: Callable[[], object]) -> None:
    """Waits for what is bound to happen."""
    deadline = time.monotonic() + SECONDS
    while not happened():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


def is_there(pid: int) -> bool:
    """Whether a process exists and runs."""
    try:
        os.kill(pid, 0)
        status = Path(f"/proc/{pid}/stat").read_text()
    except (ProcessLookupError, FileNotFoundError):  # gone, or while it was looked at
        return False
    return "Z" not in status.rpartition(")")[2].split()[0]


def connect(stack: ExitStack, servers: Cassandra, *only: str, **options: object) -> Session:
    """A session of the driver, on some nodes only if they are named."""
    hosts = list(only) or servers.contact_points
    profile = ExecutionProfile(
        WhiteListRoundRobinPolicy(hosts), consistency_level=ConsistencyLevel.QUORUM, request_timeout=SECONDS
    )
    driver = Cluster(
        hosts,
        port=servers.port,
        protocol_version=5,
        execution_profiles={EXEC_PROFILE_DEFAULT: profile},
        reconnection_policy=ConstantReconnectionPolicy(0.5, max_attempts=None),
        **options,
    )
    stack.callback(driver.shutdown)
    return driver.connect()


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """Closes what a test opened."""
    with ExitStack() as opened:
        yield opened


def test_one_node(cassandra: Cassandra, stack: ExitStack) -> None:
    """A fresh node keeps rows."""
    session, name = connect(stack, cassandra), unique_name()
    session.execute(f"CREATE KEYSPACE {name} WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 1}}")
    session.execute(f"CREATE TABLE {name}.rows (id int PRIMARY KEY, text text)")
    session.execute(f"INSERT INTO {name}.rows (id, text) VALUES (1, 'one')")
    assert [tuple(row) for row in session.execute(f"SELECT id, text FROM {name}.rows")] == [(1, "one")]


@pytest.mark.slow  # A node with the samples of deploy/ has settings, TLS and a login, too.
def test_options_reach_the_node(servers: ExitStack, tmp_path: Path, stack: ExitStack) -> None:
    """A node of one's own has the asked settings, lets in only who encrypts and logs in, and disturbs no other one."""
    both = tmp_path / "both.pem"
    both.write_text((TLS / "key.pem").read_text() + (TLS / "cert.pem").read_text())
    options = CassandraOptions(
        commitlog_sync="batch", authentication=True, tls=Tls(both), settings={"tombstone_failure_threshold": 500}
    )
    own = stack.enter_context(start_cassandra(1, options))
    context = ssl.create_default_context(cafile=str(TLS / "cert.pem"))
    context.check_hostname = False
    login = PlainTextAuthProvider(*cql.SUPERUSER)
    session = connect(stack, own, ssl_context=context, auth_provider=login)
    rows = session.execute("SELECT name, value FROM system_views.settings")
    settings = {row.name: row.value for row in rows}
    assert settings["commitlog_sync"] == "batch"
    assert settings["tombstone_failure_threshold"] == "500"
    with pytest.raises((cql.Refused, ConnectionError)):
        cql.Conversation(own.contact_points[0], own.port, seconds=SECONDS)
    with pytest.raises(cql.Refused, match="password are incorrect"):
        cql.Conversation(own.contact_points[0], own.port, tls=context, user=("cassandra", "wrong"), seconds=SECONDS)


@pytest.mark.slow  # Three nodes cost more processor time than all other tests of this room.
def test_three_nodes_survive_one(cassandra_nodes: CassandraCluster, stack: ExitStack) -> None:
    """While a node is dead, two of three go on and know it; started again, it has its data and the others see it."""
    first, second, third = cassandra_nodes.nodes
    session, name = connect(stack, cassandra_nodes, first.address, second.address), unique_name()
    session.execute(f"CREATE KEYSPACE {name} WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 3}}")
    session.execute(f"CREATE TABLE {name}.rows (id int PRIMARY KEY)")
    session.execute(f"INSERT INTO {name}.rows (id) VALUES (1)")
    third.kill()
    assert not third.alive
    until(lambda: not first.sees_all() and not second.sees_all())
    session.execute(f"INSERT INTO {name}.rows (id) VALUES (2)")
    third.start()
    cassandra_nodes.wait_until_settled()
    with cql.Conversation(third.address, third.port, seconds=SECONDS) as conversation:
        conversation.query(f"SELECT id FROM {name}.rows WHERE id = 1", cql.ALL)


def test_paused_and_resumed(servers: ExitStack) -> None:
    """A paused server is there and silent until it is resumed; a killed or stopped one comes back with its data."""
    with start_zookeeper(1) as ensemble:
        node = ensemble.nodes[0]
        client = KazooClient(ensemble.connect_string)
        client.start(SECONDS)
        client.create("/kept", b"value")
        client.stop()
        client.close()
        node.pause()
        assert node.pid is not None
        assert is_there(node.pid)
        until(lambda: not node.answers())  # A thread that runs when the signal comes may still finish an answer.
        node.resume()
        until(node.answers)
        for end in (node.kill, node.stop):
            before = node.pid
            end()
            assert not node.alive
            assert not node.answers()
            node.start()
            assert node.pid != before
        client = KazooClient(ensemble.connect_string)
        client.start(SECONDS)
        assert client.get("/kept")[0] == b"value"
        client.stop()
        client.close()


def test_an_ensemble_elects_another_leader(zookeeper_nodes: ZooKeeperEnsemble) -> None:
    """When the leader is killed the other two agree on one of them."""
    leader = zookeeper_nodes.leader
    assert leader is not None
    leader.kill()
    until(lambda: zookeeper_nodes.leader)
    assert zookeeper_nodes.leader is not leader


def test_clusters_side_by_side(zookeeper: ZooKeeper, servers: ExitStack) -> None:
    """Two clusters at once have different addresses and both answer; nothing of a closed one stays."""
    with start_zookeeper(1) as one, start_zookeeper(1) as two:
        assert len({zookeeper.connect_string, one.connect_string, two.connect_string}) == 3
        assert one.nodes[0].answers()
        assert two.nodes[0].answers()
        pid, home = one.nodes[0].pid, one.home.path
    assert pid is not None
    assert not is_there(pid)
    assert not home.exists()


def test_broken_settings(servers: ExitStack) -> None:
    """A node that cannot start says why, at once, and leaves nothing."""
    with pytest.raises(StartFailed, match=r"(?s)ended while starting.*no_such_setting") as failure:
        start_cassandra(1, CassandraOptions(settings={"no_such_setting": 1}))
    assert "cassandra.yaml" in str(failure.value) or "system.log" in str(failure.value)


def test_killed_parent(servers: ExitStack) -> None:
    """When who started servers is killed, they end and their directory goes, even if a fork of it lives on."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], env=environment, stdout=subprocess.PIPE, text=True, process_group=0
    ) as parent:
        try:
            assert parent.stdout is not None
            pid, home = parent.stdout.readline().split()
            assert is_there(int(pid))
            os.kill(parent.pid, signal.SIGKILL)
            until(lambda: not is_there(int(pid)) and not Path(home).exists())
        finally:
            os.killpg(parent.pid, signal.SIGKILL)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a process die with its parent")
def test_killed_keeper(servers: ExitStack) -> None:
    """A server whose keeper is killed ends as well."""
    with start_zookeeper(1) as ensemble:
        node = ensemble.nodes[0]
        keeper = int(Path(f"/proc/{node.pid}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(keeper, signal.SIGKILL)
        until(lambda: node.pid is not None and not is_there(node.pid))
        assert not node.alive


@pytest.mark.parametrize(
    ("end", "nodes", "kept"),
    [
        pytest.param(signal.SIGTERM, 1, {"cassandra", "zookeeper"}, marks=pytest.mark.slow, id="both"),
        pytest.param(signal.SIGINT, 0, {"zookeeper"}, id="zookeeper"),
    ],
)
def test_foreground(end: signal.Signals, nodes: int, kept: set[str], tmp_path: Path, servers: ExitStack) -> None:
    """Run in the foreground, servers answer where they say, stop when told, and leave what was to be kept."""
    command = [sys.executable, "-m", "deploy.local", "--zookeeper", "1", "--cassandra", str(nodes), "--heap", "512m"]
    # These nodes compile well and therefore slowly, as they do for those who use them for longer.
    variables = os.environ | {"JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
    command += ["--keep", str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, env=variables, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            lines = []
            for line in process.stdout:
                lines.append(line)
                if line.startswith("Running"):
                    break
            text = "".join(lines)
            pids = [int(line.rpartition("process ")[2]) for line in lines if " process " in line]
            assert len(pids) == 1 + nodes, text
            for kind in ("CASSANDRA", "ZOOKEEPER")[1 - nodes :]:
                host, port = text.partition(f"QUEUEY_TEST_{kind}=")[2].split()[0].split(":")
                socket.create_connection((host, int(port)), SECONDS).close()
            process.send_signal(end)
            assert process.wait(SECONDS) == 0
        finally:
            process.kill()
    assert [pid for pid in pids if is_there(pid)] == []
    assert {path.name for path in tmp_path.iterdir()} == kept


def test_foreground_explains_failure(tmp_path: Path, servers: ExitStack) -> None:
    """What keeps the foreground command from working is said in a sentence, without a traceback."""
    command = [sys.executable, "-m", "deploy.local", "--zookeeper", "0", "--cassandra", "1", "--heap", "nonsense"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 1
    assert "StartFailed" in done.stderr
    assert "-Xmxnonsense" in done.stderr
    assert "Traceback" not in done.stderr
