"""Claiming workers and their service under kill -9: every job is done, and few are done twice."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from queuey.client import Outgoing
from tests.contract.samples import eventually
from tests.qdo.worker.claiming.errands import work
from tests.servers.processes import ending
from tests.servers.served import Served, environment

JOBS, WORKERS, THREADS = 400, 3, 4
KILLS = 4
"""Min number of kills: one for each part of the jobs."""
CLAIM_SECONDS = 2
MAX_REPEATED_JOBS = 100
"""Max jobs that one kill repeats: those of half a second, done but not acknowledged."""
LONG = 400.0


@pytest.mark.parametrize("seed", [1, *(pytest.param(number, marks=pytest.mark.slow) for number in range(2, 12))])
def test_kills(tmp_path: Path, seed: int) -> None:
    """After any kill each job is done and has its result; only jobs in hand are done again."""
    rng, book, kills = random.Random(seed), tmp_path / "book", 0
    with Served(tmp_path) as first, ExitStack() as stack:
        client = stack.enter_context(first.client(deadline=120))
        client.create_queue("errands", result_ttl=3600)
        variables = environment(QUEUEY_PROFILE=str(first.profile_path), TEST_BOOK=str(book))
        options = ["--claim-ttl", str(CLAIM_SECONDS), "--threads", str(THREADS)]
        command = [sys.executable, "-m", "qdo", "work", "tests.qdo.worker.claiming.errands:jobs", *options]

        def start() -> subprocess.Popen[bytes]:
            log = stack.enter_context((tmp_path / "workers.log").open("ab"))
            return stack.enter_context(ending(subprocess.Popen(command, env=variables, stdout=log, stderr=log)))

        calls = [Outgoing(json=work.call(str(number)).body) for number in range(JOBS)]
        receipts = client.send_many("errands", calls)
        workers, served = [start() for _ in range(WORKERS)], first
        while len(count_runs(book)) < JOBS:
            enough = count_runs(book).total() + JOBS // KILLS
            assert eventually(partial(is_done, book, enough), LONG), f"{len(count_runs(book))} of {JOBS} done"
            if rng.random() < 0.3:
                served.end(signal.SIGKILL)
                served = stack.enter_context(Served(tmp_path, port=first.port))
            else:
                victim = rng.randrange(WORKERS)
                workers[victim].kill()
                workers[victim] = start()
            kills += 1
        size = client.job_queue("errands").size
        assert eventually(lambda: not size().size, LONG)
        ended = client.job_queue("errands").status(receipts)
        assert [(job.status, job.result) for job in ended] == [("done", str(number)) for number in range(JOBS)]
        assert count_runs(book).keys() == {str(number) for number in range(JOBS)}
        assert count_runs(book).total() - JOBS <= kills * MAX_REPEATED_JOBS


def is_done(book: Path, enough: int) -> bool:
    """Returns whether more than ``enough`` runs of jobs were counted, or all jobs are done."""
    done = count_runs(book)
    return done.total() > enough or len(done) == JOBS


def count_runs(book: Path) -> Counter[str]:
    return Counter(book.read_text().split("\n")[:-1]) if book.exists() else Counter()
