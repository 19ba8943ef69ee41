"""The modest caller of the fairness measure, beside a service."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bench.harness import Void
from bench.measures import fairness
from bench.started import service
from bench.started.processes import Process
from tests.replacing import replace_in


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """A service with what the measure prepares."""
    directory = tmp_path_factory.mktemp("fairness")
    fairness.prepare_store(directory)
    with service.serve(directory) as server:
        yield server


def test_each_job_is_done_in_turn(server: Process) -> None:
    """Posts, reads and claims are equally many, each with its times; claims acknowledge, so none is refused."""
    times = fairness.run_modest(server, 0.3)
    assert list(times) == list(fairness.JOBS)
    assert len({times[job]["answers"] for job in times}) == 1
    assert all(0 < times[job]["p50"] <= times[job]["p99"] <= times[job]["longest"] for job in times)


def test_any_other_answer_voids_the_run(server: Process) -> None:
    """Any answer but a success to the modest caller voids the run."""
    jobs = {**fairness.JOBS, "read": (fairness.JOBS["read"][0], 404)}
    with replace_in(fairness, fairness.JOBS, jobs), pytest.raises(Void, match="200 OK"):
        fairness.run_modest(server, 0.1)
