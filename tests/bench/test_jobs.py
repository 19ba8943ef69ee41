"""The measure of job queues: jobs are counted and timed correctly, and a missing system is left out."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.harness import Bench, Skip
from bench.job_queues import probe
from bench.job_queues.probe import Receiver
from bench.measures import jobs
from bench.started import other_python, river


@pytest.fixture
def ear() -> Iterator[Receiver]:
    with contextlib.closing(Receiver()) as ear:
        yield ear


def test_a_job_tells_how_long_ago_it_was_sent(ear: Receiver) -> None:
    """Its seconds are those since the sender's clock was read."""
    sent = time.monotonic() - 5
    probe.report_delay(ear.port, sent)
    assert 5 <= ear.receive(5) <= time.monotonic() - sent


def test_the_first_and_the_last_job_tell(ear: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those between only count."""
    monkeypatch.setattr(probe, "_NUMBERS", iter(range(1, 6)))
    for _ in range(5):
        probe.count_run(ear.port, 5)
    first, last = ear.receive(5), ear.receive(5)
    assert first <= last
    with pytest.raises(TimeoutError):
        ear.receive(0.01)


@pytest.mark.parametrize("name", ["jobs", "async_jobs", "embedded"])
def test_our_round_runs_to_its_end(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process that sends hears of all jobs, from workers of all kinds."""
    monkeypatch.setattr(jobs, "choose_backlog_size", lambda bench, *, fast: 300)
    bench = Bench(tmp_path, quick=True)
    with contextlib.ExitStack() as stack:
        ours = jobs.prepare_ours_embedded(bench) if name == "embedded" else jobs.serve_ours(bench, stack, 1, name)
        result = jobs.run_round(bench, ours)
    assert result.many is not None
    assert min(result.one, result.many, result.done) > 0
    assert 0 < result.p50 <= result.p99


def test_an_interpreter_without_a_system_skips_it() -> None:
    """The message names the packages and the variable."""
    with pytest.raises(Skip, match=r"no-such-queue.*BENCH_JOBS_PYTHON"):
        other_python.read_versions(Path(sys.executable), ["no-such-queue"])
    with pytest.raises(Skip, match="BENCH_JOBS_PYTHON"):
        other_python.read_versions(Path("/nowhere/python"), ["rq"])


def test_a_machine_without_go_skips_river(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says what is missing."""
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(Skip, match="needs Go"):
        river.program()
