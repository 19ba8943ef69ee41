"""Tests of the capacity model: its calculations, and the page that it writes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bench import capacity
from bench.capacity import Cluster, Costs, Load, compute_need
from bench.measures.cassandra import costs
from bench.pages import MeasuredReport
from bench.results import Report, Row
from tests.unit.bench.test_pages import FACTS

COSTS = Costs((1e-4, 2e-4), (1e-5, 2e-5), (3e-4, 5e-4), (5e-5, 6e-5), (1e-6, 2e-6), 10_000.0, 900.0)
LOAD = Load(86_400_000, queues=1e6, streams=1e5, streamed=0.5, claimed=0.1, reads=2.0, kept=3.0, peak=2.0)


def make_report() -> MeasuredReport:
    def paid(name: str, service: float, nodes: float) -> Row:
        return Row(name, [1000.0], "requests/s", {"server CPU us/message": service, "behind it us/message": nodes})

    rows = [
        paid(costs.POST, 100, 200),
        paid(costs.POST_TO_STREAM, 110, 220),
        paid(costs.CLAIM, 300, 500),
        paid(costs.READ, 50, 60),
        Row(costs.STREAM_SERVICE, [1.0], "µs/s"),
        Row(costs.STREAM_NODES, [2.0], "µs/s"),
        Row(costs.STREAM_MEMORY, [10.0], "KB"),
        Row(costs.FILES, [900.0], "B"),
    ]
    return MeasuredReport(Report(capacity.MEASURE, "Costs", rows), FACTS)


def test_the_costs_are_those_of_the_report() -> None:
    """Microseconds become seconds; a live stream costs as much as it adds to the posts of its queue."""
    measured = Costs.from_report(make_report())
    assert measured.post == COSTS.post
    assert measured.stream == pytest.approx(COSTS.stream)
    assert replace(measured, stream=COSTS.stream) == COSTS


def test_a_need_is_the_sum_of_what_everything_costs() -> None:
    """Each part of the load is counted once, at the peak rate, divided by the usable share."""
    needed = compute_need(LOAD, COSTS, Cluster(busy=0.5, filled=0.5))
    assert needed.rate == pytest.approx(2000)
    service = 2000 * (100 + 5 + 30 + 100) + 100_000
    nodes = 2000 * (200 + 10 + 50 + 120) + 200_000
    assert needed.service == pytest.approx(2 * service / 1e6)
    assert needed.node == pytest.approx(2 * nodes / 1e6 / 3)
    assert needed.disk == pytest.approx(2 * 86_400_000 * 3 * 900 / 3)
    assert needed.memory == pytest.approx(2 * 54e6 + 1e9)


def test_the_page_keeps_its_sentences(tmp_path: Path) -> None:
    """The tables are replaced, however often the page is written, and the rest stays."""
    path = tmp_path / "capacity.md"
    path.write_text(capacity.PAGE.read_text("utf-8"), "utf-8")
    tables = capacity.make_tables(COSTS, FACTS)
    once = capacity.insert_tables(path.read_text("utf-8"), tables)
    assert capacity.insert_tables(once, tables) == once
    assert tables in once
    for line in ("# Capacity: a model", "1,000,000,000", "`abcd1234`"):
        assert line in once


def test_a_page_fits_on_a_screen() -> None:
    """A page has few lines, whatever was measured."""
    assert (
        len(capacity.insert_tables(capacity.PAGE.read_text("utf-8"), capacity.make_tables(COSTS, FACTS)).splitlines())
        <= 45
    )
