"""A job that ends its worker spends only its own attempts."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.contract.samples import eventually
from tests.qdo.worker.kills.poison import POISON
from tests.servers.processes import ending
from tests.servers.served import Served, environment

COUNT, MAX_DELIVERIES = 100, 2
MODULE = "tests.qdo.worker.kills.poison"
WORK = ["qdo", "work", "--claim", "--queue", "jobs", "--claim-ttl", "2", f"{MODULE}:handle"]
WAYS = {
    "threads": [*WORK, "--threads", "4"],
    "processes": [*WORK, "--processes", "4"],
    "loop": [MODULE, "loop", "jobs"],
    "receive": [MODULE, "receive", "jobs"],
}


@pytest.mark.parametrize("way", WAYS)
def test_a_job_that_ends_its_worker(tmp_path: Path, way: str) -> None:
    """If one of 100 jobs ends its worker, it becomes a dead letter, and the others are done within two attempts."""
    book = tmp_path / "book"
    with Served(tmp_path) as served, ExitStack() as stack:
        client = stack.enter_context(served.client())
        client.create_queue("jobs", max_deliveries=MAX_DELIVERIES)
        client.send_many("jobs", [str(number) for number in range(COUNT)])
        variables = environment(QUEUEY_PROFILE=str(served.profile_path), TEST_BOOK=str(book))
        workers: list[subprocess.Popen[bytes]] = []

        def is_over() -> bool:
            if not workers or workers[-1].poll() is not None:
                log = stack.enter_context((tmp_path / "workers.log").open("ab"))
                command = [sys.executable, "-m", *WAYS[way]]
                workers.append(
                    stack.enter_context(ending(subprocess.Popen(command, env=variables, stdout=log, stderr=log)))
                )
            counts = client.job_queue("jobs").backlog()
            return counts.dead == 1 and not counts.waiting + counts.claimed + counts.retrying

        assert eventually(is_over, 60), (tmp_path / "workers.log").read_text()
        assert eventually(lambda: [letter.body for letter in client.read("jobs.dead").messages] == [POISON])
        attempts: Counter[str] = Counter()
        for line in book.read_text().splitlines():
            body, _, attempt = line.partition(" ")
            attempts[body] = max(attempts[body], int(attempt))
        assert attempts.pop(POISON) == MAX_DELIVERIES
        assert attempts.keys() == {str(number) for number in range(COUNT)} - {POISON}
        assert max(attempts.values()) <= 2
