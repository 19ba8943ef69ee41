"""The services of the compose file, started as processes on a real Cassandra: the migration, then two web nodes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from queuey.client import Client
from queuey.storage.cassandra.options import DataCentreTarget
from tests.deploy import dockerfile
from tests.servers.plugin import Cassandra, unique_name
from tests.servers.served import environment, free_port
from tests.waiting import PATIENCE_SECONDS

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(sys.executable).parent


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((ROOT / "deploy" / "compose" / "compose.yaml").read_text())["services"]
    return content


@pytest.fixture(scope="module")
def target(cassandra: Cassandra) -> DataCentreTarget:
    """A keyspace that does not exist yet."""
    return DataCentreTarget(tuple(cassandra.contact_points), unique_name("compose"), cassandra.port)


def variables(service: dict[str, Any], target: DataCentreTarget, volume: Path) -> dict[str, str]:
    image = dockerfile.read(ROOT / "deploy" / "docker" / "Dockerfile")[1][-1].environment
    values = {name: value.replace("/var/lib", str(volume)) for name, value in (image | service["environment"]).items()}
    values |= {"QUEUEY_STORE": target.url, "QUEUEY_HOST": "127.0.0.1", "QUEUEY_PORT": str(free_port())}
    return environment(**values | {"PATH": f"{PROGRAMS}{os.pathsep}/usr/bin:/bin"})


def command(service: dict[str, Any]) -> list[str]:
    image = dockerfile.read(ROOT / "deploy" / "docker" / "Dockerfile")[1][-1]
    words = service.get("command") or image.last("CMD").words
    return [str(PROGRAMS / image.last("ENTRYPOINT").words[0]), *words]


@contextmanager
def running(service: dict[str, Any], target: DataCentreTarget, volume: Path) -> Iterator[str]:
    volume.mkdir()
    values = variables(service, target, volume)
    process = subprocess.Popen(command(service), env=values, cwd=volume, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("Queuey serves at")
        yield f"http://127.0.0.1:{values['QUEUEY_PORT']}"
        process.send_signal(signal.SIGTERM)
        assert process.wait(300) == 0
    finally:
        process.kill()
        process.communicate(timeout=PATIENCE_SECONDS)


def run(words: list[str], given: dict[str, str]) -> str:
    ended = subprocess.run(words, env=given, cwd=PROGRAMS, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_two_web_nodes_serve_the_same(services: dict[str, Any], target: DataCentreTarget, tmp_path: Path) -> None:
    """After the migration two web nodes serve the same queues and messages to the same key, and write no file."""
    migration, volumes = services["migrate"], (tmp_path / "1", tmp_path / "2")
    words = ["datacenter1=1" if word == "dc1=3" else word for word in command(migration)]
    assert words != command(migration)
    values = variables(migration, target, tmp_path)
    for _ in range(2):  # It may run again, as when the containers are created anew.
        run(words, values)
    key = json.loads(run([words[0], "app", "create", "demo", "--json"], values))["secret"]
    with (
        running(services["web-1"], target, volumes[0]) as node,
        running(services["web-2"], target, volumes[1]) as other,
        Client(node, key=key, application="demo") as first,
        Client(other, key=key, application="demo") as second,
    ):
        first.create_queue("shared", partitions=2)
        receipt = first.send("shared", "hello")
        assert list(second.queue_names()) == ["shared"]
        assert [message.body for message in second.get("shared", receipt)] == ["hello"]
    assert [list(volume.iterdir()) for volume in volumes] == [[], []]
