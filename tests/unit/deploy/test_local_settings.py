"""Tests of the servers' settings: cassandra.yaml, zoo.cfg, tokens."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.local import cassandra, logback, zookeeper
from deploy.local.cassandra import CassandraOptions, Site, Tls

NODE = cassandra.Place(
    index=1,
    addresses=("127.9.9.1", "127.9.9.2", "127.9.9.3"),
    native_port=9042,
    storage_port=7000,
    jmx_port=20_001,
    directory=Path("/data/node2"),
)


def render_settings(**options: Any) -> dict[str, Any]:  # noqa: ANN401 - whatever the options are
    settings: dict[str, Any] = json.loads(cassandra.render(NODE, CassandraOptions(**options)))
    return settings


def test_transactions_are_those_of_production() -> None:
    """By default a test cluster has the Paxos variant that is advised for production."""
    sample = Path(__file__).parents[3] / "deploy" / "cassandra" / "queuey.yaml"
    assert render_settings()["paxos_variant"] == yaml.safe_load(sample.read_text())["paxos_variant"]
    assert render_settings(settings={"paxos_variant": "v1"})["paxos_variant"] == "v1"


def test_a_node_of_several_data_centres() -> None:
    """Nodes of other data centres use a node's broadcast address; those of its own use its listen address."""
    assert render_settings()["endpoint_snitch"] == "SimpleSnitch"
    assert "broadcast_address" not in render_settings()
    sites = (Site("east", "127.9.9.4"), Site("west", "127.9.9.5"), Site("west", "127.9.9.6"))
    place = replace(NODE, sites=sites)
    settings = json.loads(cassandra.render(place, CassandraOptions()))
    assert (settings["listen_address"], settings["broadcast_address"]) == ("127.9.9.2", "127.9.9.5")
    assert settings["seed_provider"][0]["parameters"] == [{"seeds": "127.9.9.4,127.9.9.5,127.9.9.6"}]
    assert settings["endpoint_snitch"] == "GossipingPropertyFileSnitch"
    assert cassandra.render_rackdc(sites[1]).split() == ["dc=west", "rack=rack1", "prefer_local=true"]


@pytest.mark.parametrize(
    ("sync", "lines"),
    [
        ("periodic", {"commitlog_sync": "periodic", "commitlog_sync_period": "10000ms"}),
        ("group", {"commitlog_sync": "group", "commitlog_sync_group_window": "10ms"}),
        ("batch", {"commitlog_sync": "batch"}),
    ],
)
def test_commitlog_sync(sync: str, lines: dict[str, str]) -> None:
    """Each way to sync has exactly the lines that Cassandra allows with it."""
    settings = render_settings(commitlog_sync=sync)
    assert {name: value for name, value in settings.items() if name.startswith("commitlog_sync")} == lines


def test_open_unless_asked_otherwise() -> None:
    """Passwords and encryption are off by default."""
    assert render_settings().keys().isdisjoint({"authenticator", "client_encryption_options"})
    assert render_settings(authentication=True)["authenticator"] == "PasswordAuthenticator"


@pytest.mark.parametrize("authority", [None, Path("/ca.pem")])
def test_encryption(authority: Path | None) -> None:
    """Clients must encrypt, and present a certificate exactly if a CA is given."""
    lines = render_settings(tls=Tls(Path("/key.pem"), authority))["client_encryption_options"]
    assert (lines["enabled"], lines["optional"], lines["keystore"]) == (True, False, "/key.pem")
    assert lines["require_client_auth"] == (authority is not None)
    assert lines.get("truststore") == (str(authority) if authority else None)


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
    """The mode of a server is read from its answer, and is empty if it does not serve."""
    assert zookeeper.parse_mode(answer) == mode


def test_log_settings_are_well_formed() -> None:
    """A directory with special characters of XML gives well-formed log settings."""
    text = logback.render(Path("/tmp/a & b/system.log"), ["some.logger"])
    assert "<file>/tmp/a &amp; b/system.log</file>" in text
    assert '<logger name="some.logger" level="WARN"/>' in text


def test_what_a_quick_node_does_without() -> None:
    """A quick node has JMX and a durable schema only on request; a normal one has both."""
    assert cassandra.WITHOUT_FLUSH not in cassandra.choose_speed_options(CassandraOptions())
    assert cassandra.WITHOUT_FLUSH in cassandra.choose_speed_options(CassandraOptions(restarts=False))
    assert cassandra.WITHOUT_BEANS in cassandra.choose_speed_options(CassandraOptions())
    assert cassandra.WITHOUT_BEANS not in cassandra.choose_speed_options(CassandraOptions(nodetool=True))
    well = cassandra.choose_speed_options(CassandraOptions(quick_start=False, restarts=False))
    assert not {cassandra.WITHOUT_BEANS, cassandra.WITHOUT_FLUSH} & {*well}
