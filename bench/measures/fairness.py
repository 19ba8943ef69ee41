"""Measures the latency of a caller with one connection while a greedy application uses the service."""

from __future__ import annotations

import contextlib
import hashlib
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from bench.harness import Bench, Void, measure
from bench.load import traffic
from bench.load.greedy import CONNECTIONS, KINDS, LISTED_QUEUES, PARTITIONS, SUBSCRIBED_QUEUES
from bench.load.modest import ModestPlan, Times
from bench.results import Report, Row, Verdict
from bench.started import service
from bench.started.processes import Process
from queuey.model.messages import NewMessage, QueueSpec
from queuey.storage import bridge

KEY = "f" * 64
"""The key of the modest application."""
ALONE = "alone"
BUSY = "two busy processes"
"""Processes that only compute, with the low priority of a greedy caller: the cost of sharing two cores alone."""
BURN_SCRIPT = "import os; os.nice(15)\nwhile True: pass"
MAX_P99_RATIO = 3
"""Max p99, as a multiple of the p99 beside ``BUSY``."""
PATH = "/v1/modest/mine"
CLAIM = traffic.request("POST", f"{PATH}/claims?limit=1&ttl=60", "", {"Content-Type": "application/json"})
JOBS = {
    "post": (traffic.request("POST", PATH, traffic.bodies(1)[0], {"Content-Type": "text/plain"}), 201),
    "read": (traffic.request("GET", f"{PATH}?limit=1"), 200),
    "claim": (CLAIM[: CLAIM.index("Content-Length")], 200),
}

Sample = dict[str, Times]


@contextlib.contextmanager
def run_greedy(server: Process, kind: str) -> Iterator[None]:
    """Runs a greedy caller, or what :data:`ALONE` and :data:`BUSY` say, during the block, which begins 1.5 s later."""
    commands = {ALONE: [], BUSY: [["-c", BURN_SCRIPT]] * 2}.get(
        kind, [["-m", "bench.load.greedy", str(server.port), kind]]
    )
    children = [subprocess.Popen([sys.executable, *command]) for command in commands]
    try:
        time.sleep(1.5)
        yield
    finally:
        for child in children:
            child.kill()
            child.wait()


def run_modest(server: Process, seconds: float) -> Sample:
    """Runs the modest caller for some seconds; returns the times of each of its jobs.

    Raises:
        Void: An answer was not a success.
    """
    jobs = {name: (text.replace(traffic.KEY, KEY), status) for name, (text, status) in JOBS.items()}
    plan: ModestPlan = {"port": server.port, "seconds": seconds, "jobs": jobs}
    command = [sys.executable, "-m", "bench.load.modest"]
    process = subprocess.run(
        command, input=json.dumps(plan), capture_output=True, text=True, timeout=seconds + 120, check=False
    )
    if process.returncode:
        raise Void(f"{server.name}: {process.stderr}\n{server.log_tail()}")
    times: Sample = json.loads(process.stdout)
    return times


def prepare_store(directory: Path) -> None:
    """Creates the queues of both applications, filled as the modest caller and the kinds of greed need them."""
    with contextlib.closing(service.prepare(directory, ["bench", "brief", "pages", "empty"])) as store:
        bridge.run(store.applications.create_application("modest"))
        bridge.run(store.applications.add_key("modest", hashlib.sha256(KEY.encode()).digest()))
        mine, _ = bridge.run(store.catalogue.create_queue("modest", "mine", QueueSpec()))
        service.fill(store, mine, traffic.bodies(16), 1000)
        service.fill(store, bridge.run(store.catalogue.queue(service.APPLICATION, "bench")), traffic.bodies(16), 1000)
        pages = bridge.run(store.catalogue.queue(service.APPLICATION, "pages"))
        for _ in range(4):
            bridge.run(
                store.messages.append(pages, [NewMessage("x" * 250_000, 1, service.THREE_DAYS) for _ in range(10)])
            )
        wide, _ = bridge.run(
            store.catalogue.create_queue(service.APPLICATION, "wide", QueueSpec(partitions=PARTITIONS, type="public"))
        )
        for partition in range(1, PARTITIONS + 1):
            bridge.run(store.messages.append(wide, [NewMessage("x" * 60_000, partition, service.THREE_DAYS)]))
        for number in range(SUBSCRIBED_QUEUES):
            bridge.run(store.catalogue.create_queue("queuey", f"subscribed{number:04}{'a' * 36}", QueueSpec()))
        for name in range(LISTED_QUEUES):
            listed, _ = bridge.run(store.catalogue.create_queue("queuey", f"listed{name:03}", QueueSpec(partitions=20)))
            bridge.run(store.messages.append(listed, [NewMessage("x", n, service.THREE_DAYS) for n in range(1, 21)]))


@measure(
    "fairness", "One greedy application with 64 connections, and the latency of another one with a single connection"
)
def measure_beside_greedy_application(bench: Bench) -> Report:
    """A failed request of the modest application makes the run void.

    Five runs of 20 s beside each kind of greed take 35 minutes.
    """
    return make_report(measure_beside(bench))


def measure_beside(bench: Bench) -> dict[str, list[Sample]]:
    """Serves once, and measures a modest caller beside each kind, :data:`ALONE` and :data:`BUSY` included.

    The kinds have a random order in each round. A second of the modest caller before the rounds does not count.
    """
    directory = bench.new_directory("queuey")
    prepare_store(directory)
    samples: dict[str, list[Sample]] = {kind: [] for kind in (ALONE, BUSY, *KINDS)}
    rounds = bench.count(5, 1)
    with service.serve(directory) as server:
        run_modest(server, 1)
        for turn in range(rounds):
            for kind in bench.rng.sample(list(samples), len(samples)):
                with run_greedy(server, kind):
                    times = run_modest(server, bench.duration(20, 1))
                samples[kind].append(times)
                shown = ", ".join(f"{job} {times[job]['p99']:.1f}" for job in JOBS)
                bench.print_progress(f"{turn + 1} of {rounds}: {kind}: p99 in ms: {shown}")
    return samples


def make_report(samples: dict[str, list[Sample]]) -> Report:
    """Divides each p99 by the p99 beside processes that only compute, and shows it as a multiple of the one alone."""
    rows, verdicts = [], []
    for job in JOBS:
        alone, busy = (statistics.median(run[job]["p99"] for run in samples[kind]) for kind in (ALONE, BUSY))
        for kind, runs in samples.items():
            p99 = [run[job]["p99"] for run in runs]
            shown = {"p50 ms": statistics.median(run[job]["p50"] for run in runs)}
            row = Row(f"{job}, {kind}", p99, "ms", shown | {"x alone": statistics.median(p99) / alone})
            ratio = Verdict(
                f"p99 of a {job} beside {kind} / beside {BUSY}",
                [value / busy for value in p99],
                goal=None if kind in {ALONE, BUSY} else MAX_P99_RATIO,
                better="lower",
            )
            rows.append(row)
            verdicts.append(ratio)
    notes = [
        f"{CONNECTIONS} greedy connections; p99 in ms of one that is answered with success.",
        "Generators and service share processors: p99 rises beside any busy process, so that is what it is divided by.",
    ]
    return Report("fairness", "", rows, verdicts, notes)
