"""The harness, its load generator and its servers: a benchmark that measures wrongly is worse than none."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from bench.harness import Void
from bench.load import traffic
from bench.started import service
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
