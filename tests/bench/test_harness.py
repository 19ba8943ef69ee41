"""The harness, its load generator and its servers: a benchmark that measures wrongly is worse than none."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bench import __main__
from bench.harness import Bench, Measure, Skip, Void, run_measure
from bench.load import traffic, wrk
from bench.results import Report
from bench.started import processes, service
from bench.started.processes import Process

JOB = traffic.posts_of_one("/v1/queuey/bench", traffic.bodies(3))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    directory = tmp_path_factory.mktemp("server")
    service.prepare(directory).close()
    with service.serve(directory) as server:
        yield server


def test_a_counted_run_ends_with_its_count(server: Process) -> None:
    """A run over several connections counts every answer once and accounts for the server's memory and processes."""
    sample = traffic.run(server, JOB, seconds=30, connections=4, warm=0, count=500)
    assert 500 <= sample.answers < 500 + 4
    assert 0 < sample.p50 <= sample.p99 <= sample.longest
    assert sample.rate > 0
    assert len(server.memory()) == len(server.pids()) >= 2


def test_a_wrong_status_voids_the_run(server: Process) -> None:
    """One answer with an unexpected status voids the run."""
    with pytest.raises(Void, match="201 Created"):
        traffic.run(server, replace(JOB, status=200), seconds=30, connections=2, warm=0, count=10)


def test_a_server_that_does_not_start_voids_the_measure(tmp_path: Path) -> None:
    """The error has the output of the process."""
    command = [sys.executable, "-m", "no_such_module"]
    with pytest.raises(Void, match="no_such_module"), processes.start("absent", command, 1, tmp_path):
        pass


def test_every_side_runs_once_a_round_in_changing_order(tmp_path: Path) -> None:
    """Interleaving runs all sides in every round, and not always in the same order."""
    order: list[str] = []

    def side(name: str) -> int:
        order.append(name)
        return len(order)

    bench = Bench(tmp_path, quick=True, rng=random.Random(4))
    samples = bench.interleave({name: lambda name=name: side(name) for name in "abc"}, 8)  # type: ignore[misc]
    turns = ["".join(order[at : at + 3]) for at in range(0, 24, 3)]
    assert {"".join(sorted(turn)) for turn in turns} == {"abc"}
    assert len(set(turns)) > 1
    assert [len(values) for values in samples.values()] == [8, 8, 8]


def test_what_cannot_be_measured_is_said(tmp_path: Path) -> None:
    """A skipped measure is a report with its reason, and leaves no directory behind."""

    def run(bench: Bench) -> Report:
        raise Skip("no Java")

    report = run_measure(Measure("peer", "title", run), quick=True, seed=1, parent=tmp_path)
    assert "SKIPPED: no Java" in report.as_text()
    assert "SKIPPED peer: no Java" in __main__.make_summary([report], {"other": "broke"})
    assert "VOID other" in __main__.make_summary([report], {"other": "broke"})
    assert list(tmp_path.iterdir()) == []


WRK = """Running 2s test @ http://127.0.0.1:1/
  1 threads and 64 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency     3.15ms    1.02ms  18.71ms   83.71%
  Latency Distribution
     50%    3.01ms
     99%    0.90s
  38720 requests in 2.00s, 9.60MB read
Requests/sec:  19360.00
"""


def test_what_wrk_says_is_read() -> None:
    """Rates, quantiles and the server's CPU come out of wrk's own words."""
    sample = wrk.parse_output(WRK, 1.9360, "", JOB)
    assert (sample.rate, sample.p50, sample.p99, sample.longest, sample.cpu) == (19360.0, 3.01, 900.0, 18.71, 50.0)


@pytest.mark.parametrize(
    "output",
    [
        WRK + "  Non-2xx or 3xx responses: 1\n",
        WRK + "  Socket errors: connect 0, read 3\n",
        WRK.replace("38720 requests", "0 requests"),
    ],
)
def test_errors_that_wrk_tells_of_void_a_run(output: str) -> None:
    """A run of wrk with a bad answer or connection, or without any answer, is not a measurement."""
    with pytest.raises(Void, match="complaint"):
        wrk.parse_output(output, 1.0, "complaint", JOB)
