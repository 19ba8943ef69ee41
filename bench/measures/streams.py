"""Live streams: what thousands of them hold while nothing comes, how soon a message comes, and what others notice."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator

from bench.harness import Bench, Void, measure
from bench.load import traffic
from bench.load.listeners import Heard, ListenPlan
from bench.load.traffic import Job, Sample
from bench.results import Report, Row, Verdict
from bench.started import service
from bench.started.processes import Process

IDLE = 10.0
"""Seconds for which nothing comes, while the processor time is taken."""
POSTERS = 8
"""Connections that post to the inboxes."""
ROOM = {"QUEUEY_CONNECTIONS": "30000", "QUEUEY_WAIT_SLOTS": "15000"}


@contextlib.contextmanager
def listening(server: Process, paths: list[str]) -> Iterator[list[Heard]]:
    """Has a process listen to streams beside the block; what it has heard stands in the list afterwards.

    Raises:
        Void: A stream was refused, or has ended.
    """
    plan: ListenPlan = {"port": server.port, "paths": paths}
    command = [sys.executable, "-m", "bench.load.listeners"]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdin is not None
    assert child.stdout is not None
    found: list[Heard] = []
    try:
        child.stdin.write(json.dumps(plan) + "\n")
        child.stdin.flush()
        if child.stdout.readline() != "open\n":
            raise Void(f"{server.name}: the streams could not be opened\n{server.log_tail()}")
        yield found
        child.stdin.write("\n")
        child.stdin.flush()
        told = child.stdout.readline()
        if not told:
            raise Void(f"{server.name}: streams have ended\n{server.log_tail()}")
        found.append(json.loads(told))
    finally:
        child.kill()
        child.wait()


@measure("streams", "Ten thousand live streams on one worker, each of an inbox of its own")
def streams(bench: Bench) -> Report:
    """Memory is what the worker's grows by; requests of others are compared with the same before the streams came."""
    count = bench.size(10_000, 300)
    directory = bench.fresh("queuey")
    service.prepare(directory, [*(f"inbox{number:05}" for number in range(count)), "bench", "read"]).close()
    inboxes = [f"{service.BASE}/inbox{number:05}" for number in range(count)]
    texts = traffic.bodies(1)
    each = Job([traffic.request("POST", path, texts[0], {"Content-Type": "text/plain"}) for path in inboxes], 201)
    api = {
        "POST of 1": traffic.posts_of_one(f"{service.BASE}/bench", traffic.bodies(64)),
        "GET of 1": traffic.gets([f"{service.BASE}/read?limit=1"]),
    }
    samples: dict[str, list[Sample]] = {}
    seconds, rounds = bench.pick(4, 0.3), bench.size(5, 1)
    with service.serve(directory, environment=ROOM) as server:
        traffic.run(server, each, seconds=60, connections=POSTERS, warm=0, count=count)  # The queues are in memory.

        def ask(when: str) -> None:
            for what, job in api.items():
                for _ in range(rounds):
                    run = traffic.run(server, job, seconds=seconds, connections=8)
                    samples.setdefault(f"{what}, {when}", []).append(run)

        ask("no streams")
        before = max(server.memory())
        with listening(server, [f"{path}?since=now" for path in inboxes]) as heard:
            time.sleep(1)
            held = (max(server.memory()) - before) * 1e3 / count
            spent = server.cpu_seconds()
            time.sleep(bench.pick(IDLE, 1))
            idle = (server.cpu_seconds() - spent) / bench.pick(IDLE, 1) * 100
            ask(f"{count:,} streams")
            traffic.run(server, each, seconds=60, connections=POSTERS, warm=0, count=count)
            time.sleep(1)
        [came] = heard
        if came["messages"] < count:
            raise Void(f"only {came['messages']} of {count} messages came")
        with listening(server, [f"{service.BASE}/bench?since=now"] * min(1000, count)) as one:
            traffic.run(server, api["POST of 1"], seconds=10, connections=1, warm=0, count=20)
            time.sleep(1)
    rows = [traffic.row(name, runs) for name, runs in samples.items()]
    rows += [
        Row("a stream's memory", [held], "KB"),
        Row("idle", [idle], "% of a core"),
        Row(
            "a message to each inbox, p99", [came["p99"]], "ms", {"p50 ms": came["p50"], "longest ms": came["longest"]}
        ),
        Row("1,000 streams on one queue, p99", [one[0]["p99"]], "ms", {"p50 ms": one[0]["p50"]}),
    ]
    verdicts = [
        Verdict("memory of a stream", [held], unit="KB", goal=15, better="lower"),
        Verdict("idle", [idle], unit="%", goal=5, better="lower"),
        Verdict("a message to each inbox, p99", [came["p99"]], unit="ms", goal=1000, better="lower"),
    ]
    for what in api:
        tails = [[run.p99 for run in samples[f"{what}, {when}"]] for when in (f"{count:,} streams", "no streams")]
        ratios = [a / b for a, b in zip(*map(sorted, tails), strict=True)]
        verdicts.append(Verdict(f"p99 of {what}: beside them / without", ratios, goal=1.5, better="lower"))
    return Report("", "", rows, verdicts, ["Messages of 200 B; streams by HTTP/1.1, without TLS."])
