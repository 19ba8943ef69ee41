"""The alerts: valid, about existing metrics, tested, and documented. promtool runs them where it is installed."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from queuey.runtime.metrics import Metrics, make_exposition, make_snapshot
from queuey.storage import bridge
from queuey.storage.cassandra import CassandraOptions, CassandraStore
from queuey.storage.cassandra.time.clock import SteadyClock
from queuey.storage.sqlite import open_store as open_sqlite
from tests.servers.processes import run_well

ROOT = Path(__file__).parents[2]
DIRECTORY = ROOT / "deploy" / "prometheus"
RULES, CONFIG, BLACKBOX = (DIRECTORY / name for name in ("queuey.rules.yml", "prometheus.yml", "blackbox.yml"))
TESTS = Path(__file__).with_name("alerts.yml")
PAGE = ROOT / "docs" / "operations-cassandra.md"
NOBODY = "cassandra://127.0.0.1:1/queuey"

with_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool")


@pytest.fixture(scope="module")
def alerts() -> dict[str, dict[str, Any]]:
    """The alerts by name; each has a name of its own."""
    groups = yaml.safe_load(RULES.read_text())["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    by_name = {rule["alert"]: rule for rule in rules}
    assert len(by_name) == len(rules)
    return by_name


def families(text: bytes) -> set[str]:
    """Returns the names of metrics, each of which must have a help text."""
    assert re.findall(r"^# HELP (\w+) *$", text.decode(), re.MULTILINE) == []
    return set(re.findall(r"^# TYPE (\w+) ", text.decode(), re.MULTILINE))


@pytest.fixture(scope="module")
def cassandra_families() -> set[str]:
    """Metrics of the service on Cassandra, which exist even while Cassandra is down."""
    store = CassandraStore(NOBODY, CassandraOptions(reap_interval=None, heartbeat=60.0), SteadyClock())
    try:
        return families(make_exposition({"1": make_snapshot(Metrics(), bridge.run(store.statistics()))}))
    finally:
        store.close()


@pytest.fixture(scope="module")
def common_families(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The metrics of the service on SQLite, after a request."""
    metrics = Metrics()
    metrics.count_request("v1.queue", 200, 0.001)
    store = open_sqlite(tmp_path_factory.mktemp("store"))
    try:
        return families(make_exposition({"1": make_snapshot(metrics, bridge.run(store.statistics()))}))
    finally:
        store.close()


def promtool(*arguments: str | Path) -> None:
    run_well(["promtool", *map(str, arguments)])


@with_promtool
def test_prometheus_accepts_them() -> None:
    """Prometheus takes the rules, and the settings that name them."""
    promtool("check", "rules", RULES)
    promtool("check", "config", CONFIG)


@with_promtool
def test_they_speak_when_they_should() -> None:
    """Fed with made-up metrics, every alert is silent below its bound and speaks above."""
    promtool("test", "rules", TESTS)


@pytest.mark.skipif(shutil.which("prometheus-blackbox-exporter") is None, reason="needs the blackbox exporter")
def test_blackbox_exporter_accepts_its_modules() -> None:
    """The blackbox exporter takes the modules."""
    command = ["prometheus-blackbox-exporter", "--config.check", f"--config.file={BLACKBOX}"]
    run_well(command)


def test_metrics_exist(
    alerts: dict[str, dict[str, Any]], common_families: set[str], cassandra_families: set[str]
) -> None:
    """Every metric that an alert asks about is one of the service's, or of Prometheus' own."""
    named = {name for rule in alerts.values() for name in re.findall(r"\b(?:queuey|qdo|up|probe)\w*", rule["expr"])}
    jobs = {job["job_name"] for job in yaml.safe_load(CONFIG.read_text())["scrape_configs"]}
    plain = {name.removesuffix("_bucket") for name in named - {"up", "probe_success"} - {"queuey"}}
    assert plain - common_families - cassandra_families == set()
    assert {job for rule in alerts.values() for job in re.findall(r'job="([^"]+)"', rule["expr"])} == jobs


def test_each_is_tested_both_ways(alerts: dict[str, dict[str, Any]]) -> None:
    """Every alert has a test in which it must not fire, and one in which it must."""
    cases = [case for test in yaml.safe_load(TESTS.read_text())["tests"] for case in test["alert_rule_test"]]
    assert {case["alertname"] for case in cases if case.get("exp_alerts")} == set(alerts)
    silent = {case["alertname"] for case in cases if not case.get("exp_alerts")}
    assert silent == set(alerts)


def test_each_is_explained(alerts: dict[str, dict[str, Any]]) -> None:
    """The page says of every alert what it means and what to do, with its severity."""
    pages = PAGE.read_text() + (ROOT / "docs" / "operations.md").read_text()
    explained = dict(re.findall(r"^\| (Queuey\w+) \((page|ticket)\) \|", pages, re.MULTILINE))
    assert explained == {name: rule["labels"]["severity"] for name, rule in alerts.items()}


def test_metrics_are_explained(cassandra_families: set[str], common_families: set[str]) -> None:
    """The page names exactly the metrics that the store on Cassandra has of its own."""
    named = set(re.findall(r"\bqueuey_[a-z_]+\b", PAGE.read_text()))
    own = {name for name in cassandra_families if name.startswith("queuey_store_")}
    assert named == own
    assert own - common_families


def test_targets_are_asked_what_there_is() -> None:
    """Health is asked where the service answers it, through modules that the blackbox exporter has."""
    jobs = {job["job_name"]: job for job in yaml.safe_load(CONFIG.read_text())["scrape_configs"]}
    modules = set(yaml.safe_load(BLACKBOX.read_text())["modules"])
    assert {module for job in jobs.values() for module in job.get("params", {}).get("module", [])} == modules
    for name in ("queuey-heartbeat", "queuey-schema"):
        (target,) = (rule for rule in jobs[name]["relabel_configs"] if rule["target_label"] == "__param_target")
        assert target["replacement"] == "http://$1/__heartbeat__"


@pytest.mark.parametrize(
    ("body", "about_schema"),
    [
        ("OK", False),
        ("StoreUnavailable: Cassandra has too few replicas alive (1 of 2 needed)", False),
        ("StoreUnavailable: the clock is +0.410 s off the clocks of the Cassandra nodes", False),
        ("StoreUnavailable: keyspace queuey has no tables yet; run `queuey migrate`", True),
        ("StoreUnavailable: keyspace queuey cannot be used: a newer version of Queuey has changed it", True),
    ],
)
def test_schema_is_told_from_other_troubles(body: str, *, about_schema: bool) -> None:
    """The module for the schema fails on answers about the schema, and on no others."""
    patterns = yaml.safe_load(BLACKBOX.read_text())["modules"]["queuey_schema"]["http"]["fail_if_body_matches_regexp"]
    assert any(re.search(pattern, body) for pattern in patterns) == about_schema
