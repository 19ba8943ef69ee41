"""One greedy application at full blast, and what another one notices of it."""

from __future__ import annotations

import contextlib
import hashlib
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace

from queuey.messages import NewMessage, QueueSpec
from tests.bench.harness import Bench, measure
from tests.bench.load import traffic
from tests.bench.load.greedy import CONNECTIONS, KINDS
from tests.bench.load.traffic import Job, Sample
from tests.bench.results import Report, Row, Verdict
from tests.bench.started import service
from tests.bench.started.processes import Process

KEY = "f" * 64
"""The key of the application that is not greedy."""
ALONE = "alone"
BUSY = "two busy processes"
"""They only compute, at the low priority of a greedy caller: what sharing two processors costs by itself."""
BURN = "import os; os.nice(15)\nwhile True: pass"
MODEST = 2
"""Connections of it, for posts and for reads each."""


def modest(job: Job) -> Job:
    """Returns a job as the other application does it."""
    return replace(job, requests=[text.replace(traffic.KEY, KEY) for text in job.requests])


POSTS = modest(traffic.posts_of_one("/v1/modest/mine", traffic.bodies(16)))
READS = modest(traffic.gets(["/v1/modest/mine?limit=10"], 10))


@contextlib.contextmanager
def greedy(server: Process, kind: str) -> Iterator[None]:
    """Lets the greedy application do its worst meanwhile, or other processes keep the processors busy."""
    commands = {ALONE: [], BUSY: [["-c", BURN]] * 2}.get(
        kind, [["-m", "tests.bench.load.greedy", str(server.port), kind]]
    )
    children = [subprocess.Popen([sys.executable, *command]) for command in commands]
    try:
        time.sleep(1.5)
        yield
    finally:
        for child in children:
            child.kill()
            child.wait()


@measure("fairness", "One greedy application with 64 connections, and the latency of another one beside it")
def fairness(bench: Bench) -> Report:
    """Any answer to the other application but success makes the run void."""
    directory = bench.fresh("queuey")
    with contextlib.closing(service.prepare(directory, ["bench", "pages", "empty"])) as store:
        store.create_application("modest")
        store.add_key("modest", hashlib.sha256(KEY.encode()).digest())
        mine, _ = store.create_queue("modest", "mine", QueueSpec())
        service.fill(store, mine, traffic.bodies(16), 1000)
        service.fill(store, store.queue(service.APPLICATION, "bench"), traffic.bodies(16), 1000)
        pages = store.queue(service.APPLICATION, "pages")
        for _ in range(4):
            store.append(pages, [NewMessage("x" * 250_000, 1, service.THREE_DAYS) for _ in range(10)])
    seconds = bench.pick(3, 1)
    kinds = [ALONE, BUSY, *KINDS]
    samples: dict[str, list[tuple[Sample, Sample]]] = {kind: [] for kind in kinds}
    with service.serve(directory) as server:
        traffic.run(server, POSTS, seconds=1, connections=MODEST)
        for turn in range(bench.size(5, 1)):
            for kind in bench.rng.sample(kinds, len(kinds)):
                with greedy(server, kind):
                    posts, reads = (
                        traffic.run(server, job, seconds=seconds, connections=MODEST) for job in (POSTS, READS)
                    )
                samples[kind].append((posts, reads))
                bench.say(f"{turn + 1}: {kind}: post p99 {posts.p99:.1f} ms, read p99 {reads.p99:.1f} ms")
    rows, verdicts = [], []
    for at, what in enumerate(("post", "read")):
        alone, busy = (statistics.median(pair[at].p99 for pair in samples[kind]) for kind in (ALONE, BUSY))
        for kind, pairs in samples.items():
            runs = [pair[at] for pair in pairs]
            rows.append(Row(f"{what}, {kind}", [run.p99 for run in runs], "ms", {"p50 ms": runs[0].p50}))
            if kind != ALONE:
                ratios = [run.p99 / alone for run in runs]
                verdicts.append(Verdict(f"p99 of a {what} beside {kind} / alone", ratios, goal=3, better="lower"))
            if kind not in {ALONE, BUSY}:
                ratios = [run.p99 / busy for run in runs]
                verdicts.append(Verdict(f"p99 of a {what} beside {kind} / beside {BUSY}", ratios, better="lower"))
    notes = [
        f"{CONNECTIONS} greedy connections, {MODEST} of the other application; p99 in ms; each answer to it a success.",
        "Generators and service share processors: p99 rises beside any busy process. The second ratio leaves that out.",
    ]
    return Report("fairness", "", rows, verdicts, notes)
