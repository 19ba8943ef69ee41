"""The measure of job queues: that jobs are counted and timed rightly, and that a system that is missing is left out."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.harness import Bench, Skip
from bench.job_queues import probe
from bench.job_queues.probe import Ear
from bench.measures import jobs
from bench.measures.jobs import Taken
from bench.started import other_python

FAST = Taken(one=100, many=2000, done=4000, p50=5, p99=9, slowest=7)
SLOW = Taken(one=50, many=None, done=1000, p50=10, p99=20, slowest=10)


@pytest.fixture
def ear() -> Iterator[Ear]:
    """Hears what jobs tell."""
    with contextlib.closing(Ear()) as ear:
        yield ear


def test_a_job_tells_how_long_ago_it_was_sent(ear: Ear) -> None:
    """Its seconds are those since the sender's clock was read."""
    sent = time.monotonic() - 5
    probe.timed(ear.port, sent)
    assert 5 <= ear.hear(5) <= time.monotonic() - sent


def test_the_first_and_the_last_job_tell(ear: Ear, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those between only count."""
    monkeypatch.setattr(probe, "_NUMBERS", iter(range(1, 6)))
    for _ in range(5):
        probe.counted(ear.port, 5)
    first, last = ear.hear(5), ear.hear(5)
    assert first <= last
    with pytest.raises(TimeoutError):
        ear.hear(0.01)


@pytest.mark.parametrize("name", ["jobs", "async_jobs"])
def test_our_round_runs_to_its_end(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process that sends hears of all jobs, from workers of both kinds."""
    monkeypatch.setattr(jobs, "backlog", lambda bench, *, fast: 300)
    bench = Bench(tmp_path, quick=True)
    with contextlib.ExitStack() as stack:
        found = jobs.taken(bench, jobs.ours(bench, stack, 1, name))
    assert found.many is not None
    assert min(found.one, found.many, found.done) > 0
    assert 0 < found.p50 <= found.slowest
    assert found.p50 <= found.p99


def test_an_interpreter_without_a_system_skips_it() -> None:
    """The message names the packages and the variable."""
    with pytest.raises(Skip, match=r"no-such-queue.*BENCH_JOBS_PYTHON"):
        other_python.versions(Path(sys.executable), ["no-such-queue"])
    with pytest.raises(Skip, match="BENCH_JOBS_PYTHON"):
        other_python.versions(Path("/nowhere/python"), ["rq"])


def test_ratios_are_ours_to_the_other() -> None:
    """A system without a call for many jobs has no row of it."""
    found = {row.name: row for row in jobs.rows({jobs.OURS: [FAST], "celery, solo": [SLOW]})}
    assert found["handled: celery, solo"].details == {"queuey / it": 4}
    assert "sends, 100 a call: queuey" in found
    assert "sends, 100 a call: celery, solo" not in found
    assert found["send to start: celery, solo"].details == {"queuey / it": 0.5, "p99 ms": 20}


def test_the_slowest_connections_count_together() -> None:
    """A quarter of them, or the only one."""
    groups = [[1.0, 2.0], [9.0, 7.0], [1.0, 1.0], [5.0, 6.0], [2.0, 2.0], [3.0, 3.0], [1.0, 3.0], [2.0, 1.0]]
    assert jobs.of_slowest(groups) == 6.5
    assert jobs.of_slowest([[4.0, 5.0, 6.0]]) == 5


def test_celery_counts_with_its_fastest_pool() -> None:
    """And two processes of the service with their slowest connections."""
    samples = {jobs.OURS: [FAST], jobs.OURS_TWO: [FAST], "celery, solo": [SLOW], "celery, threads": [FAST]}
    found = {verdict.name: verdict for verdict in jobs.verdicts(samples)}
    assert found["jobs a second: queuey / celery, threads"].value == 1
    assert found["from send to start: queuey, 2 processes, slowest connections"].value == 7
    assert not any("procrastinate" in name for name in found)
