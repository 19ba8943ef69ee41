"""The Grafana dashboard: it queries existing metrics, each query returns data, and nothing depends on one Grafana."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import promql_parser
import pytest
import yaml

from tests.deploy.grafana import recorded
from tests.deploy.test_prometheus import promtool, with_promtool

FILE = Path(__file__).parents[3] / "deploy" / "grafana" / "queuey.json"
VARIABLES = {"$__rate_interval": "1m", "$job": "queuey", "$instance": ".*", "$workers": "qdo"}
"""Values that replace Grafana's variables here."""
SOURCE = {"type": "prometheus", "uid": "${datasource}"}


class Sample(NamedTuple):
    """A series: the name of its metric, and its labels."""

    name: str
    labels: dict[str, str]


class Query(NamedTuple):
    """A query of the dashboard: its place, and the text that Grafana sends to Prometheus."""

    place: str
    text: str

    def selectors(self) -> list[promql_parser.VectorSelector]:
        parsed: list[promql_parser.VectorSelector] = []

        def look(node: promql_parser.Expr) -> bool:
            if isinstance(node, promql_parser.VectorSelector):
                parsed.append(node)
            return True

        promql_parser.walk(promql_parser.parse(self.text), look)
        return parsed


@pytest.fixture(scope="module")
def dashboard() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(FILE.read_text())
    return content


@pytest.fixture(scope="module")
def series(tmp_path_factory: pytest.TempPathFactory) -> recorded.Series:
    return recorded.record(tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="module")
def samples(series: recorded.Series) -> list[Sample]:
    """The same series, one each, without values."""
    return [
        Sample(one["series"].partition("{")[0], dict(re.findall(r'(\w+)="([^"]*)"', one["series"]))) for one in series
    ]


def substitute_variables(text: str) -> str:
    """Returns a query with Grafana's variables replaced; fails if one is left."""
    for name, value in VARIABLES.items():
        text = text.replace(name, value)
    assert "$" not in text, text
    return text


def panels(dashboard: dict[str, Any]) -> Iterator[dict[str, Any]]:
    return (panel for panel in dashboard["panels"] if panel["type"] != "row")


def queries(dashboard: dict[str, Any]) -> list[Query]:
    asked = [
        Query(panel["title"], substitute_variables(one["expr"]))
        for panel in panels(dashboard)
        for one in panel["targets"]
    ]
    for one in dashboard["templating"]["list"]:
        if one["type"] == "query":
            (selector,) = re.fullmatch(r"label_values\((.+), \w+\)", one["query"]["query"]).groups()  # type: ignore[union-attr]
            asked.append(Query("$" + one["name"], substitute_variables(selector)))
    return asked


def fits(sample: Sample, selector: promql_parser.VectorSelector) -> bool:
    if sample.name != selector.name:
        return False
    for label, operator, value in re.findall(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"', str(selector.matchers)):
        label_value = sample.labels.get(label, "")
        same = re.fullmatch(value, label_value) is not None if "~" in operator else label_value == value
        if same == operator.startswith("!"):
            return False
    return True


def test_queries_ask_for_what_there_is(dashboard: dict[str, Any], samples: list[Sample]) -> None:
    """Every part of every query is about series that a service or a worker has, and groups them by labels of theirs."""
    dashboard_queries = queries(dashboard)
    assert len(dashboard_queries) > len(list(panels(dashboard)))
    for query in dashboard_queries:
        matched = []
        for selector in query.selectors():
            matching = [sample for sample in samples if fits(sample, selector)]
            assert matching, (query, str(selector))
            matched += matching
        labels = {label for sample in matched for label in sample.labels}
        grouped = {label for by in re.findall(r"\bby \(([^)]*)\)", query.text) for label in re.split(r",\s*", by)}
        assert grouped <= labels, query


def test_every_metric_is_shown(dashboard: dict[str, Any], samples: list[Sample]) -> None:
    """No metric of a service or a worker is missing on the dashboard."""
    shown = {
        re.sub("_bucket$", "", str(selector.name)) for query in queries(dashboard) for selector in query.selectors()
    }
    kept = {re.sub("_(bucket|sum|count|created)$", "", sample.name) for sample in samples}
    assert kept - shown == set()


@with_promtool
def test_each_query_gives_data(dashboard: dict[str, Any], series: recorded.Series, tmp_path: Path) -> None:
    """Prometheus answers each query with numbers, asked after the last scrape."""
    end = f"{15 * (recorded.SCRAPES - 1)}s"
    panel_queries = [query for query in queries(dashboard) if query.place not in VARIABLES]
    cases = [
        # A comparison with itself keeps numbers and drops NaN (0 / 0).
        {
            "expr": f"count(({query.text}) == ({query.text})) > bool 0",
            "eval_time": end,
            "exp_samples": [{"labels": "{}", "value": 1}],
        }
        for query in panel_queries
    ]
    tests = [{"interval": "15s", "input_series": series, "promql_expr_test": cases}]
    (tmp_path / "queries.yml").write_text(yaml.safe_dump({"tests": tests}, width=1_000_000))
    promtool("test", "rules", tmp_path / "queries.yml")


def test_any_grafana_can_take_it(dashboard: dict[str, Any]) -> None:
    """It asks the data source that its reader picks, and has no id that another dashboard could have."""
    assert (dashboard.get("uid"), dashboard["id"]) == (None, None)
    assert dashboard["templating"]["list"][0]["type"] == "datasource"
    sources = [one["datasource"] for panel in panels(dashboard) for one in (panel, *panel["targets"])]
    sources += [one["datasource"] for one in dashboard["templating"]["list"][1:]]
    assert all(source == SOURCE for source in sources)
