"""The compose file: valid, and its parts fit together, as far as that can be checked without Docker's engine."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.local.cassandra import NATIVE_PORT
from queuey import settings
from queuey.cli import load
from queuey.storage.cassandra.admin.migrations import parse_replication
from queuey.storage.cassandra.cluster.options import parse_url
from tests.deploy import dockerfile

ROOT = Path(__file__).parents[2]
FILE = ROOT / "deploy" / "compose" / "compose.yaml"
NODES = ["cassandra-1", "cassandra-2", "cassandra-3"]
WEB = ["web-1", "web-2"]

Service = dict[str, Any]


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    """The file, with anchors and merges resolved."""
    content: dict[str, Any] = yaml.safe_load(FILE.read_text())
    return content


@pytest.fixture(scope="module")
def services(document: dict[str, Any]) -> dict[str, Service]:
    entries: dict[str, Service] = document["services"]
    return entries


def has_compose() -> bool:
    """Returns whether docker with its compose plugin is installed; an engine is not needed."""
    try:
        return subprocess.run(["docker", "compose", "version"], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


def test_docker_accepts_it() -> None:
    """Docker's own reader takes the file, all references resolved."""
    if not has_compose():
        pytest.skip("needs docker with its compose plugin")
    command = ["docker", "compose", "-f", str(FILE), "config", "--quiet"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_references_lead_somewhere(document: dict[str, Any], services: dict[str, Service]) -> None:
    """Every volume, network and dependency is declared, every file that is mounted or built from exists."""
    for name, service in services.items():
        for source in (volume.partition(":")[0] for volume in service.get("volumes", [])):
            exists = (FILE.parent / source).is_file() if source.startswith(".") else source in document["volumes"]
            assert exists, (name, source)
        assert set(service["networks"]) <= set(document["networks"])
        assert set(service.get("depends_on", {})) <= set(services)
        if "build" in service:
            context = FILE.parent / service["build"]["context"]
            assert context.resolve() == ROOT
            assert (context / service["build"]["dockerfile"]).is_file()


def test_ports_are_published_to_this_machine_only(document: dict[str, Any], services: dict[str, Service]) -> None:
    """No port can be reached from another machine, none is used twice, and Cassandra's is not published at all."""
    ports = [port for service in services.values() for port in service.get("ports", [])]
    assert all(re.fullmatch(r"127\.0\.0\.1:\d+:\d+", port) for port in ports)
    assert len({port.split(":")[1] for port in ports}) == len(ports)
    assert not any(services[name].get("ports") for name in NODES)
    # Cassandra has no passwords, so only the services on its closed network reach it.
    assert document["networks"]["store"]["internal"] is True
    assert all(services[name]["networks"] == ["store"] for name in NODES)


def test_order_of_starts(services: dict[str, Service]) -> None:
    """Nodes join one after another; the migration waits for all of them, and the web nodes for the migration."""
    for first, second in itertools.pairwise(NODES):
        assert services[second]["depends_on"] == {first: {"condition": "service_healthy"}}
    assert services["migrate"]["depends_on"] == {name: {"condition": "service_healthy"} for name in NODES}
    for name in WEB:
        assert services[name]["depends_on"]["migrate"] == {"condition": "service_completed_successfully"}


def test_health_checks(services: dict[str, Service]) -> None:
    """Every server has a health check; the web nodes' is that of the image, on the port that is published."""
    image = dockerfile.read(ROOT / "deploy" / "docker" / "Dockerfile")[1][-1]
    for name in (*NODES, "zookeeper"):
        assert services[name]["healthcheck"]["test"][0] == "CMD"
    assert str(NATIVE_PORT) in services[NODES[0]]["healthcheck"]["test"][-1]
    assert image.all("HEALTHCHECK")
    for name in WEB:
        assert "healthcheck" not in services[name]
        assert services[name]["ports"][0].split(":")[2] == image.environment["QUEUEY_PORT"]


def test_health_check_of_cassandra_looks_at_the_port(services: dict[str, Service]) -> None:
    """The nodes' health check fails while no process listens, and passes when one does."""
    import socket  # noqa: PLC0415 - only this test listens

    command = services[NODES[0]]["healthcheck"]["test"][1:]
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        adapted = [part.replace(str(NATIVE_PORT), str(listener.getsockname()[1])) for part in command]
        assert subprocess.run(adapted, capture_output=True, check=False).returncode != 0
        listener.listen()
        assert subprocess.run(adapted, capture_output=True, check=False).returncode == 0


def test_nodes_get_our_lines_once(services: dict[str, Service], tmp_path: Path) -> None:
    """However often a node's container starts, its settings are the image's with ours behind them."""
    own = (ROOT / "deploy" / "cassandra" / "queuey.yaml").read_text()
    image = "commitlog_sync: periodic\ncommitlog_sync_period: 10000ms\nnum_tokens: 16\n"
    (tmp_path / "cassandra.yaml").write_text(image)
    (tmp_path / "docker-entrypoint.sh").write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / "docker-entrypoint.sh").chmod(0o755)
    for name in NODES:
        assert "../cassandra/queuey.yaml:/etc/queuey/cassandra.yaml:ro" in services[name]["volumes"]
        program, *arguments, script = services[name]["entrypoint"]
        script = script.replace("/etc/queuey/cassandra.yaml", str(ROOT / "deploy" / "cassandra" / "queuey.yaml"))
        script = script.replace("$$", "$").replace("/etc/cassandra", str(tmp_path))
        variables = {"PATH": f"{tmp_path}{os.pathsep}/usr/bin:/bin"}
        ran = subprocess.run([program, *arguments, script], env=variables, capture_output=True, text=True, check=True)
        assert ran.stdout == "cassandra -f\n"
        assert (tmp_path / "cassandra.yaml").read_text() == image + own


def test_web_nodes_find_the_store(services: dict[str, Service]) -> None:
    """The web nodes' variables are accepted together with the image's, and name exactly the nodes that there are."""
    image = dockerfile.read(ROOT / "deploy" / "docker" / "Dockerfile")[1][-1]
    for name in (*WEB, "migrate"):
        loaded = settings.load({}, image.environment | services[name]["environment"])
        assert list(parse_url(loaded.settings.store).hosts) == NODES
        assert "store" in services[name]["networks"]


def test_web_nodes_may_do_little(services: dict[str, Service]) -> None:
    """The service's containers write to /tmp and the image's volume alone, and have no capabilities."""
    for name in (*WEB, "migrate"):
        service = services[name]
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert "no-new-privileges:true" in service["security_opt"]
        assert "privileged" not in service


def test_migration_makes_three_copies(services: dict[str, Service]) -> None:
    """The migration is a command of ours that asks for a copy per node, in the nodes' data centre."""
    name, *arguments = services["migrate"]["command"]
    command = load(name)
    options = {option for parameter in command.params for option in parameter.opts}
    assert {word for word in arguments if word.startswith("--")} <= options
    copies = parse_replication(arguments[arguments.index("--replication") + 1])
    centre = services[NODES[0]]["environment"]["CASSANDRA_DC"]
    assert copies == {"class": "NetworkTopologyStrategy", centre: str(len(NODES))}


def test_stops_wait_for_requests(services: dict[str, Service]) -> None:
    """Docker waits longer than the service takes to stop."""
    from queuey.web.http.processes import KILL_DELAY  # noqa: PLC0415 - imports the server

    takes = settings.load({}, {}).settings.shutdown_timeout + KILL_DELAY
    for name in WEB:
        assert float(services[name]["stop_grace_period"].removesuffix("s")) > takes
