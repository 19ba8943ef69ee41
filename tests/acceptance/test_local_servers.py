"""Real servers on this machine: they start, fail on demand, come back with their data, and end with their starter."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from deploy.local import StartFailed
from tests.servers.plugin import (
    CassandraOptions,
    ZooKeeper,
    start_cassandra,
    start_zookeeper,
)
from tests.waiting import until

ROOT = Path(__file__).parent.parent.parent
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


def is_there(pid: int) -> bool:
    """Returns whether a process runs; a zombie does not."""
    try:
        os.kill(pid, 0)
        status = Path(f"/proc/{pid}/stat").read_text()
    except (ProcessLookupError, FileNotFoundError):  # ended, or while it was read
        return False
    return "Z" not in status.rpartition(")")[2].split()[0]


def test_paused_and_resumed(servers: ExitStack) -> None:
    """A paused server is silent until it is resumed; a killed or stopped one comes back with its data."""
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
        until(lambda: not node.answers())  # A thread that runs when the signal arrives may still finish an answer.
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


def test_clusters_side_by_side(zookeeper: ZooKeeper, servers: ExitStack) -> None:
    """Two clusters at once have different addresses and both answer; nothing of a closed one stays."""
    with start_zookeeper(1) as first, start_zookeeper(1) as second:
        assert len({zookeeper.connect_string, first.connect_string, second.connect_string}) == 3
        assert first.nodes[0].answers()
        assert second.nodes[0].answers()
        pid, home = first.nodes[0].pid, first.home.path
    assert pid is not None
    assert not is_there(pid)
    assert not home.exists()


def test_broken_settings(servers: ExitStack) -> None:
    """A node that cannot start says why, at once, and leaves nothing."""
    with pytest.raises(StartFailed, match=r"(?s)ended while starting.*no_such_setting") as failure:
        start_cassandra(1, CassandraOptions(settings={"no_such_setting": 1}))
    assert "cassandra.yaml" in str(failure.value) or "system.log" in str(failure.value)


def test_killed_parent(servers: ExitStack) -> None:
    """When the starter of servers is killed, they end and their directory is removed, even if a fork of it lives on."""
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
    """Run in the foreground, servers answer at their addresses, stop when told, and leave what was to be kept."""
    command = [sys.executable, "-m", "deploy.local", "--zookeeper", "1", "--cassandra", str(nodes), "--heap", "512m"]
    # These nodes compile well and therefore slowly, as they do for longer use.
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
