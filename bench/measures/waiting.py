"""Measures thousands of long polls on one worker: their memory, their effect on other requests, and store requests."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path

from bench.harness import Bench, measure
from bench.load import traffic
from bench.load.waiting import get, open_long_polls, read_metric, wait_until_idle
from bench.results import Report, Row, Verdict, pairwise_ratios
from bench.started import nodes, on_cassandra, service
from bench.started.processes import Process

SETTINGS = {"QUEUEY_CONNECTIONS": "12000", "QUEUEY_WAIT_SLOTS": "6000", "QUEUEY_MAX_WAIT": "300"}
CALLERS = 4
"""Connections that post while others wait."""
ONE = [traffic.request("GET", f"{service.BASE}/waits?wait=300")]
CLAIM = [traffic.request("POST", f"{service.BASE}/claimed/claims?wait=300")]
POSTS = traffic.posts_of_one(f"{service.BASE}/bench", traffic.bodies(16))
NEWS = traffic.posts_of_one(f"{service.BASE}/waits", ["news"])


def run_posts(bench: Bench, server: Process) -> traffic.Sample:
    return traffic.run(server, POSTS, seconds=bench.duration(5, 0.5), connections=CALLERS)


def measure_memory_per_poll(bench: Bench, directory: Path, requests: Sequence[str]) -> float:
    """Returns the memory per long poll in kB, in a service that has not had any before."""
    with service.serve(directory, environment=SETTINGS) as server:
        run_posts(bench, server)
        wait_until_idle(server, 0)
        before = sum(server.memory())
        with open_long_polls(server, requests):
            return (sum(server.memory()) - before) * 1000 / len(requests)


@measure("waiting", "5,000 long polls on one worker: memory, the latency of posts beside them, and one message for all")
def measure_waiting_on_sqlite(bench: Bench) -> Report:
    """The polls wait on one partition; for their memory, also on a queue each."""
    count = bench.count(5000, 200)
    directory = bench.new_directory("waiting")
    service.prepare(directory, ["bench", "waits", "claimed"]).close()
    service.fill_queues(directory, count)
    poll_each = [traffic.request("GET", f"{service.BASE}/q{number:07d}?wait=300") for number in range(count)]
    nobody, reads, claims = sides = "nobody waits", f"{count:,} reads wait", f"{count:,} claims wait"
    posts: dict[str, list[traffic.Sample]] = {side: [] for side in sides}
    answer_seconds: list[float] = []
    sizes = {
        "one partition": [measure_memory_per_poll(bench, directory, ONE * count)],
        "a queue each": [measure_memory_per_poll(bench, directory, poll_each)],
    }
    with service.serve(directory, environment=SETTINGS) as server:
        run_posts(bench, server)
        for turn in range(bench.count(5, 1)):
            posts[nobody].append(run_posts(bench, server))
            poll = traffic.request("GET", f"{service.BASE}/waits?wait=300&after={read_horizon(server)}")
            with open_long_polls(server, [poll] * count) as polls:
                posts[reads].append(run_posts(bench, server))
                traffic.run(server, NEWS, seconds=10, warm=0, connections=1, count=1)
                answer_seconds.append(polls.wait_until_answered(60))
            with open_long_polls(server, CLAIM * count):
                posts[claims].append(run_posts(bench, server))
            shown = "; ".join(f"{side}: {runs[-1].p99:.2f} ms, {runs[-1].cpu:.0f} µs" for side, runs in posts.items())
            bench.print_progress(f"{turn + 1}: {shown}; {answer_seconds[-1]:.2f} s")
    rows = [
        *(Row(f"memory of a long poll, {name}", size, "kB") for name, size in sizes.items()),
        *(Row(f"posts, {side}", [run.p99 for run in runs], "ms p99") for side, runs in posts.items()),
        *(Row(f"posts, {side}", [run.cpu for run in runs], "µs of CPU a post") for side, runs in posts.items()),
        Row(f"one message answers {count:,}", answer_seconds, "s"),
    ]
    verdicts = [
        Verdict(f"memory of a long poll, {name}", size, "kB", goal=15, better="lower") for name, size in sizes.items()
    ]
    for side in (reads, claims):
        ratios = pairwise_ratios([run.p99 for run in posts[side]], [run.p99 for run in posts[nobody]])
        verdicts.append(Verdict(f"p99 of posts, {side} / {nobody}", ratios, goal=1.5, better="lower"))
        ratios = pairwise_ratios([run.cpu for run in posts[side]], [run.cpu for run in posts[nobody]])
        verdicts.append(Verdict(f"CPU of a post, {side} / {nobody}", ratios, better="lower"))
    notes = ["Proportional set size of the service, connections included; 1,000 bytes to the kB."]
    return Report("waiting", "", rows, verdicts, notes)


@measure("waiting-cassandra", "What long polls on one partition ask of Cassandra while nothing comes")
def measure_waiting_on_cassandra(bench: Bench) -> Report:
    """Counts the requests to Cassandra while long polls wait, and measures the p99 of posts beside them."""
    count = bench.count(5000, 100)
    seconds = bench.duration(10, 1)
    sides = {
        "nobody waits": [],
        "1 read waits": ONE,
        f"{count:,} reads wait": ONE * count,
        "1 claim waits": CLAIM,
        f"{count:,} claims wait": CLAIM * count,
    }
    rates: dict[str, list[float]] = {side: [] for side in sides}
    posts: dict[str, list[float]] = {side: [] for side, polls in sides.items() if len(polls) != 1}
    with nodes.cassandra(bench) as cassandra:
        on_cassandra.prepare(cassandra, queues=["bench", "waits", "claimed"]).close()
        directory = bench.new_directory("waiting")
        store = {"--store": cassandra.store_url(on_cassandra.KEYSPACE)}
        with service.serve_store(directory, store, threads=service.THREADS, workers=1, environment=SETTINGS) as server:
            traffic.run(server, POSTS, seconds=bench.duration(10, 0.5), connections=CALLERS)
            for _ in range(bench.count(3, 1)):
                for side in bench.rng.sample(list(sides), len(sides)):
                    with open_long_polls(server, sides[side]) if sides[side] else contextlib.nullcontext():
                        before = read_store_requests(server)
                        time.sleep(seconds)
                        rates[side].append((read_store_requests(server) - before) / seconds)
                        if side in posts:
                            posts[side].append(run_posts(bench, server).p99)
                bench.print_progress(", ".join(f"{side}: {values[-1]:.1f}/s" for side, values in rates.items()))
                bench.print_progress(", ".join(f"{side}: {values[-1]:.2f} ms" for side, values in posts.items()))
    rows = [Row(side, values, "requests/s") for side, values in rates.items()]
    rows += [Row(f"posts, {side}", values, "ms p99") for side, values in posts.items()]
    nobody, one_read, reads, one_claim, claims = sides
    verdicts = [
        Verdict(f"requests, {many} / {one}", pairwise_ratios(rates[many], rates[one]), goal=1.1, better="lower")
        for many, one in ((reads, one_read), (claims, one_claim))
    ] + [
        Verdict(
            f"p99 of posts, {many} / {nobody}", pairwise_ratios(posts[many], posts[nobody]), goal=1.5, better="lower"
        )
        for many in (reads, claims)
    ]
    notes = ["The clock check of an idle worker asks Cassandra as well: see the row of nobody."]
    return Report("waiting-cassandra", "", rows, verdicts, notes)


def read_horizon(server: Process) -> str:
    """Waits until nobody waits; returns the horizon of that queue, above which it has no message."""
    wait_until_idle(server, 0)
    return get(server, f"{service.BASE}/waits?limit=1").partition('"horizon":"')[2][:32]


def read_store_requests(server: Process) -> float:
    return read_metric(server, "queuey_store_requests_total")
