"""What the servers are told: cassandra.yaml, zoo.cfg, tokens."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from deploy.local import cassandra, logback, zookeeper
from deploy.local.cassandra import CassandraOptions, Site, Tls
from deploy.local.zookeeper import ZooKeeperOptions

NODE = cassandra.Place(
    index=1,
    addresses=("127.9.9.1", "127.9.9.2", "127.9.9.3"),
    native_port=9042,
    storage_port=7000,
    jmx_port=20_001,
    directory=Path("/data/node2"),
)
SERVER = zookeeper.Place(
    index=1,
    servers=3,
    address="127.9.9.1",
    client_port=2182,
    quorum_port=2888,
    election_port=3888,
    directory=Path("/data/server2"),
)


def rendered(**options: Any) -> dict[str, Any]:  # noqa: ANN401 - whatever the options are
    """The settings of a node."""
    settings: dict[str, Any] = json.loads(cassandra.render(NODE, CassandraOptions(**options)))
    return settings


def test_a_node_knows_its_place() -> None:
    """A node listens on its own address and starts from all of its neighbours, and writes only below its directory."""
    settings = rendered()
    assert settings["listen_address"] == settings["rpc_address"] == "127.9.9.2"
    assert settings["seed_provider"][0]["parameters"] == [{"seeds": "127.9.9.1,127.9.9.2,127.9.9.3"}]
    places = [value for name, value in settings.items() if name.endswith("_directory")]
    assert len(places) == 4
    assert all(place.startswith("/data/node2/") for place in [*places, *settings["data_file_directories"]])


def test_transactions_are_those_of_production() -> None:
    """A test cluster decides transactions in the way that production is advised to, unless it is told otherwise."""
    sample = Path(__file__).parents[3] / "deploy" / "cassandra" / "queuey.yaml"
    assert rendered()["paxos_variant"] == yaml.safe_load(sample.read_text())["paxos_variant"]
    assert rendered(settings={"paxos_variant": "v1"})["paxos_variant"] == "v1"


def test_a_node_of_several_data_centres() -> None:
    """Nodes of other data centres know it by another address than those of its own, which use where it listens."""
    assert rendered()["endpoint_snitch"] == "SimpleSnitch"
    assert "broadcast_address" not in rendered()
    sites = (Site("east", "127.9.9.4"), Site("west", "127.9.9.5"), Site("west", "127.9.9.6"))
    place = replace(NODE, sites=sites)
    settings = json.loads(cassandra.render(place, CassandraOptions()))
    assert (settings["listen_address"], settings["broadcast_address"]) == ("127.9.9.2", "127.9.9.5")
    assert settings["seed_provider"][0]["parameters"] == [{"seeds": "127.9.9.4,127.9.9.5,127.9.9.6"}]
    assert settings["endpoint_snitch"] == "GossipingPropertyFileSnitch"
    assert cassandra.rackdc(sites[1]).split() == ["dc=west", "rack=rack1", "prefer_local=true"]


@pytest.mark.parametrize(
    ("sync", "lines"),
    [
        ("periodic", {"commitlog_sync": "periodic", "commitlog_sync_period": "10000ms"}),
        ("group", {"commitlog_sync": "group", "commitlog_sync_group_window": "10ms"}),
        ("batch", {"commitlog_sync": "batch"}),
    ],
)
def test_commitlog_sync(sync: str, lines: dict[str, str]) -> None:
    """Each way to sync has exactly the lines that Cassandra allows beside it."""
    settings = rendered(commitlog_sync=sync)
    assert {name: value for name, value in settings.items() if name.startswith("commitlog_sync")} == lines


def test_given_settings_win() -> None:
    """A test can set any line, also one that is there already."""
    settings = rendered(settings={"tombstone_failure_threshold": 500, "num_tokens": 4})
    assert (settings["tombstone_failure_threshold"], settings["num_tokens"]) == (500, 4)


def test_open_unless_asked_otherwise() -> None:
    """Passwords and encryption come only when they are asked for."""
    assert rendered().keys().isdisjoint({"authenticator", "client_encryption_options"})
    assert rendered(authentication=True)["authenticator"] == "PasswordAuthenticator"


@pytest.mark.parametrize("authority", [None, Path("/ca.pem")])
def test_encryption(authority: Path | None) -> None:
    """Clients have to encrypt, and to show a certificate exactly if there is somebody to vouch for it."""
    lines = rendered(tls=Tls(Path("/key.pem"), authority))["client_encryption_options"]
    assert (lines["enabled"], lines["optional"], lines["keystore"]) == (True, False, "/key.pem")
    assert lines["require_client_auth"] == (authority is not None)
    assert lines.get("truststore") == (str(authority) if authority else None)


@given(st.integers(1, 3), st.integers(1, 32))
def test_tokens_divide_the_ring(nodes: int, each: int) -> None:
    """All nodes together have tokens at equal distances, and neighbours on the ring belong to different nodes."""
    owners = {int(token): index for index in range(nodes) for token in cassandra.tokens(index, nodes, each).split(",")}
    ring = sorted(owners)
    assert len(ring) == nodes * each
    assert -(2**63) <= ring[0] <= ring[-1] < 2**63
    assert len({after - before for before, after in itertools.pairwise(ring)}) <= 1
    assert [owners[token] for token in ring] == [index % nodes for index in range(nodes * each)]


def test_an_ensemble_lists_its_servers() -> None:
    """Each server of three knows its own port for clients, and all three for each other."""
    lines = zookeeper.render(SERVER, ZooKeeperOptions(settings={"syncLimit": 9})).splitlines()
    assert "clientPort=2182" in lines
    assert "clientPortAddress=127.9.9.1" in lines
    assert "syncLimit=9" in lines
    assert [line for line in lines if line.startswith("server.")] == [
        "server.1=127.9.9.1:2888:3888",
        "server.2=127.9.9.1:2889:3889",
        "server.3=127.9.9.1:2890:3890",
    ]


def test_a_single_server_stands_alone() -> None:
    """One server waits for nobody's vote."""
    alone = zookeeper.render(replace(SERVER, index=0, servers=1), ZooKeeperOptions())
    assert "server." not in alone


@pytest.mark.parametrize(
    ("answer", "mode"),
    [
        ("Zookeeper version: 3.9.4\nMode: leader\nNode count: 5\n", "leader"),
        ("Mode: standalone\n", "standalone"),
        ("This ZooKeeper instance is not currently serving requests\n", None),
        ("", None),
    ],
)
def test_mode(answer: str, mode: str | None) -> None:
    """What a server is stands in its answer, and nothing if it does not serve."""
    assert zookeeper.mode(answer) == mode


def test_log_settings_are_well_formed() -> None:
    """A directory with characters that mean something in XML does no harm."""
    text = logback.render(Path("/tmp/a & b/system.log"), ["some.logger"])
    assert "<file>/tmp/a &amp; b/system.log</file>" in text
    assert '<logger name="some.logger" level="WARN"/>' in text


def test_what_a_quick_node_does_without() -> None:
    """A quick node has beans and a schema that outlives a kill where they are asked for; one that is not has both."""
    assert cassandra.WITHOUT_FLUSH not in cassandra.speed(CassandraOptions())
    assert cassandra.WITHOUT_FLUSH in cassandra.speed(CassandraOptions(restarts=False))
    assert cassandra.WITHOUT_BEANS in cassandra.speed(CassandraOptions())
    assert cassandra.WITHOUT_BEANS not in cassandra.speed(CassandraOptions(nodetool=True))
    well = cassandra.speed(CassandraOptions(quick_start=False, restarts=False))
    assert not {cassandra.WITHOUT_BEANS, cassandra.WITHOUT_FLUSH} & {*well}
