"""Thousands of long polls on one worker: what each takes, what others notice of them, what they ask of the store."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path

from bench.harness import Bench, measure
from bench.load import traffic
from bench.load.waiting import ask, metric, settle, waiting
from bench.results import Report, Row, Verdict, paired
from bench.started import nodes, on_cassandra, service
from bench.started.processes import Process

SETTINGS = {"QUEUEY_CONNECTIONS": "12000", "QUEUEY_WAIT_SLOTS": "6000", "QUEUEY_MAX_WAIT": "300"}
CALLERS = 4
"""Connections that post meanwhile."""
ONE = [traffic.request("GET", f"{service.BASE}/waits?wait=300")]
CLAIM = [traffic.request("POST", f"{service.BASE}/claimed/claims?wait=300")]
POSTS = traffic.posts_of_one(f"{service.BASE}/bench", traffic.bodies(16))
NEWS = traffic.posts_of_one(f"{service.BASE}/waits", ["news"])


def posting(bench: Bench, server: Process) -> traffic.Sample:
    """Posts to a queue on which nobody waits."""
    return traffic.run(server, POSTS, seconds=bench.pick(5, 0.5), connections=CALLERS)


def kilobytes(bench: Bench, directory: Path, requests: Sequence[str]) -> float:
    """Returns what each of some long polls takes of the memory of a service that has had none before."""
    with service.serve(directory, environment=SETTINGS) as server:
        posting(bench, server)
        settle(server, 0)
        before = sum(server.memory())
        with waiting(server, requests):
            return (sum(server.memory()) - before) * 1000 / len(requests)


@measure("waiting", "5,000 long polls on one worker: memory, the latency of posts beside them, and one message for all")
def on_sqlite(bench: Bench) -> Report:
    """They wait on one partition; then, for their memory, on as many queues."""
    count = bench.size(5000, 200)
    directory = bench.fresh("waiting")
    service.prepare(directory, ["bench", "waits", "claimed"]).close()
    service.fill_queues(directory, count)
    each = [traffic.request("GET", f"{service.BASE}/q{number:07d}?wait=300") for number in range(count)]
    nobody, reads, claims = sides = "nobody waits", f"{count:,} reads wait", f"{count:,} claims wait"
    posts: dict[str, list[traffic.Sample]] = {side: [] for side in sides}
    together: list[float] = []
    sizes = {
        "one partition": [kilobytes(bench, directory, ONE * count)],
        "a queue each": [kilobytes(bench, directory, each)],
    }
    with service.serve(directory, environment=SETTINGS) as server:
        posting(bench, server)
        for turn in range(bench.size(5, 1)):
            posts[nobody].append(posting(bench, server))
            poll = traffic.request("GET", f"{service.BASE}/waits?wait=300&after={newest(server)}")
            with waiting(server, [poll] * count) as polls:
                posts[reads].append(posting(bench, server))
                traffic.run(server, NEWS, seconds=10, warm=0, connections=1, count=1)
                together.append(polls.answered(60))
            with waiting(server, CLAIM * count):
                posts[claims].append(posting(bench, server))
            found = "; ".join(f"{side}: {some[-1].p99:.2f} ms, {some[-1].cpu:.0f} µs" for side, some in posts.items())
            bench.say(f"{turn + 1}: {found}; {together[-1]:.2f} s")
    rows = [
        *(Row(f"memory of a long poll, {name}", size, "kB") for name, size in sizes.items()),
        *(Row(f"posts, {side}", [one.p99 for one in some], "ms p99") for side, some in posts.items()),
        *(Row(f"posts, {side}", [one.cpu for one in some], "µs of CPU a post") for side, some in posts.items()),
        Row(f"one message answers {count:,}", together, "s"),
    ]
    verdicts = [
        Verdict(f"memory of a long poll, {name}", size, "kB", goal=15, better="lower") for name, size in sizes.items()
    ]
    for side in (reads, claims):
        ratios = paired([one.p99 for one in posts[side]], [one.p99 for one in posts[nobody]])
        verdicts.append(Verdict(f"p99 of posts, {side} / {nobody}", ratios, goal=1.5, better="lower"))
        ratios = paired([one.cpu for one in posts[side]], [one.cpu for one in posts[nobody]])
        verdicts.append(Verdict(f"CPU of a post, {side} / {nobody}", ratios, better="lower"))
    notes = ["Proportional set size of the service, connections included; 1,000 bytes to the kB."]
    return Report("waiting", "", rows, verdicts, notes)


@measure("waiting-cassandra", "What long polls on one partition ask of Cassandra while nothing comes")
def on_cassandra_nodes(bench: Bench) -> Report:
    """Requests to Cassandra, by the service's own count."""
    count = bench.size(5000, 100)
    seconds = bench.pick(10, 1)
    sides = {
        "nobody waits": [],
        "1 read waits": ONE,
        f"{count:,} reads wait": ONE * count,
        "1 claim waits": CLAIM,
        f"{count:,} claims wait": CLAIM * count,
    }
    rates: dict[str, list[float]] = {side: [] for side in sides}
    posts: dict[str, list[float]] = {side: [] for side, some in sides.items() if len(some) != 1}
    with nodes.cassandra(bench) as cassandra:
        on_cassandra.prepare(cassandra, queues=["bench", "waits", "claimed"]).close()
        directory = bench.fresh("waiting")
        store = {"--store": cassandra.url(on_cassandra.KEYSPACE)}
        with service.run(directory, store, threads=service.THREADS, workers=1, environment=SETTINGS) as server:
            traffic.run(server, POSTS, seconds=bench.pick(10, 0.5), connections=CALLERS)
            for _ in range(bench.size(3, 1)):
                for side in bench.rng.sample(list(sides), len(sides)):
                    with waiting(server, sides[side]) if sides[side] else contextlib.nullcontext():
                        before = requests(server)
                        time.sleep(seconds)
                        rates[side].append((requests(server) - before) / seconds)
                        if side in posts:
                            posts[side].append(posting(bench, server).p99)
                bench.say(", ".join(f"{side}: {found[-1]:.1f}/s" for side, found in rates.items()))
                bench.say(", ".join(f"{side}: {found[-1]:.2f} ms" for side, found in posts.items()))
    rows = [Row(side, found, "requests/s") for side, found in rates.items()]
    rows += [Row(f"posts, {side}", found, "ms p99") for side, found in posts.items()]
    nobody, one_read, reads, one_claim, claims = sides
    verdicts = [
        Verdict(f"requests, {many} / {one}", paired(rates[many], rates[one]), goal=1.1, better="lower")
        for many, one in ((reads, one_read), (claims, one_claim))
    ] + [
        Verdict(f"p99 of posts, {many} / {nobody}", paired(posts[many], posts[nobody]), goal=1.5, better="lower")
        for many in (reads, claims)
    ]
    notes = ["The clock check of an idle worker asks Cassandra as well: see the row of nobody."]
    return Report("waiting-cassandra", "", rows, verdicts, notes)


def newest(server: Process) -> str:
    """Returns an id above which there is nothing in the queue on which they wait."""
    settle(server, 0)
    return ask(server, f"{service.BASE}/waits?limit=1").partition('"horizon":"')[2][:32]


def requests(server: Process) -> float:
    """Returns how many requests the service has sent to Cassandra so far."""
    return metric(server, "queuey_store_requests_total")
