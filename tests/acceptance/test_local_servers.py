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

from tests.servers.processes import is_alive
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


def test_killed_parent(servers: ExitStack) -> None:
    """When the starter of servers is killed, they end and their directory is removed, even if a fork of it lives on."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], env=environment, stdout=subprocess.PIPE, text=True, process_group=0
    ) as parent:
        try:
            assert parent.stdout is not None
            pid, home = parent.stdout.readline().split()
            assert is_alive(int(pid))
            os.kill(parent.pid, signal.SIGKILL)
            until(lambda: not is_alive(int(pid)) and not Path(home).exists())
        finally:
            os.killpg(parent.pid, signal.SIGKILL)


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
    assert [pid for pid in pids if is_alive(pid)] == []
    assert {path.name for path in tmp_path.iterdir()} == kept
