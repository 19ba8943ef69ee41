"""Measures posts and reads over HTTP; batches are compared with the same work without the service."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from urllib.request import Request, urlopen

from bench.baselines import rows
from bench.harness import Bench, Void, measure
from bench.load import generator as load
from bench.load import traffic, wrk
from bench.load.traffic import Job, Sample
from bench.results import Report, Verdict, pairwise_ratios
from bench.started import processes, service
from queuey.storage import bridge

QUEUE = f"{service.BASE}/bench"
CONNECTIONS = 64
BATCH = 100
RANDOM, ZIPF = "random queues", "queues by Zipf's law"


@measure("post1", "POST of one message, synchronous=FULL")
def measure_single_posts(bench: Bench) -> Report:
    """Measures the service alone, also by wrk if it is installed."""
    job = traffic.posts_of_one(QUEUE, traffic.bodies(64))
    seconds = bench.duration(2.5, 0.3)
    directory = bench.new_directory("queuey")
    service.prepare(directory).close()
    with service.serve(directory) as server:
        traffic.run(server, job, seconds=1)
        calls = {"queuey": partial(traffic.run, server, job, seconds=seconds)}
        if wrk.PATH is not None:
            calls["queuey, by wrk"] = partial(wrk.run, server, job, seconds=seconds)
        samples = bench.interleave(calls, bench.count(7, 1))
    rows = [traffic.row(name, runs) for name, runs in samples.items()]
    note = f"{CONNECTIONS} connections, {traffic.BODY_BYTES} B bodies, 1 worker with {service.THREADS} threads."
    return Report("post1", "", rows, notes=[note])


@measure("post100", "POST of 100 messages, against one process that inserts 100 rows a commit")
def compare_batch_posts(bench: Bench) -> Report:
    """The baseline does no HTTP and no JSON."""
    job = traffic.posts_of_many(QUEUE, traffic.bodies(BATCH * 16), BATCH)
    seconds = bench.duration(2, 0.3)
    ours = bench.new_directory("queuey")
    service.prepare(ours).close()
    theirs = bench.new_directory("rows")
    with service.serve(ours) as server:
        traffic.run(server, job, seconds=0.5)
        calls: dict[str, Callable[[], Sample]] = {
            f"queuey, {connections} connections": partial(
                traffic.run, server, job, seconds=seconds, connections=connections
            )
            for connections in (1, 4, 64)
        }
        calls["apsw"] = partial(run_baseline, "insert", theirs / "rows.sqlite3", seconds)
        samples = bench.interleave(calls, bench.count(5, 1))
    return compare_with_fastest(samples, "apsw", 0.4, 0.6, [f"{traffic.BODY_BYTES} B bodies; messages a second."])


@measure("get100", "GET of 100 messages, against one process that reads the same slices and encodes the same JSON")
def compare_reads(bench: Bench) -> Report:
    """The baseline opens the service's file, so both sides read exactly the same rows."""
    ours = bench.new_directory("queuey")
    store = service.prepare(ours)
    count = bench.count(200_000, 5_000)
    service.fill(store, bridge.run(store.catalogue.queue(service.APPLICATION, "bench")), traffic.bodies(1000), count)
    places = service.page_starts(store, bridge.run(store.catalogue.queue(service.APPLICATION, "bench")), BATCH)
    store.close()
    bench.rng.shuffle(places)
    job = traffic.gets([f"{QUEUE}?limit={BATCH}&since={place}" for place in places], BATCH)
    seconds = bench.duration(2, 0.3)
    with service.serve(ours) as server:
        check_slice(server, job.requests[0])
        traffic.run(server, job, seconds=0.5)
        calls: dict[str, Callable[[], Sample]] = {
            f"queuey, {connections} connections": partial(
                traffic.run, server, job, seconds=seconds, connections=connections
            )
            for connections in (4, 64)
        }
        calls["apsw"] = partial(run_baseline, "read", ours / service.STORE_FILE, seconds)
        samples = bench.interleave(calls, bench.count(5, 1))
    size = samples["queuey, 64 connections"][0].size
    return compare_with_fastest(
        samples, "apsw", 0.25, 0.5, [f"Slices of {BATCH} from random places; an answer has {size:,.0f} B."]
    )


@measure("many", "POST and GET of one message: one queue, any of 100,000, and Zipf's law over a million")
def compare_many_queues(bench: Bench) -> Report:
    """All sides use one store with all queues, 64 connections, and the same request with another number in its path.

    A GET reads the oldest message of its queue. Every queue that is read has one.
    """
    some, all_ = bench.count(100_000, 1_000), bench.count(1_000_000, 5_000)
    draws, seconds = bench.count(200_000, 2_000), bench.duration(3, 0.3)
    directory = bench.new_directory("many")
    service.prepare(directory).close()
    service.fill_queues(directory, all_)
    orders = {
        "one queue": [0],
        RANDOM: [bench.rng.randrange(some) for _ in range(draws)],
        # Rank r is drawn with a probability in proportion to 1/r.
        ZIPF: [int(all_ ** bench.rng.random()) - 1 for _ in range(draws)],
    }
    path = f"{service.BASE}/q{load.COUNTER.decode()}"
    post = traffic.request("POST", path, traffic.bodies(1)[0], {"Content-Type": "text/plain"})
    get = traffic.request("GET", f"{path}?since=0&limit=1")
    with service.serve(directory) as server:
        traffic.run(server, Job([post], 201, order=[0]), seconds=1)
        rest = sum(server.memory())
        _fill_each(server, post, range(some))
        growth = (sum(server.memory()) - rest) * 1e6 / some
        _fill_each(server, post, sorted({number for number in orders[ZIPF] if number >= some}))
        bench.print_progress("every queue has a message")
        calls = {
            f"{method}, {name}": partial(traffic.run, server, Job([request], status, order=order), seconds=seconds)
            for method, request, status in (("POST", post, 201), ("GET", get, 200))
            for name, order in orders.items()
        }
        samples = bench.interleave(calls, bench.count(5, 1))
    return Report(
        "many",
        "",
        [traffic.row(name, runs) for name, runs in samples.items()],
        [*_compare_orders(samples, list(orders)), Verdict("memory a queue", [growth], "B", goal=1_000, better="lower")],
        [
            f"Random queues are any of {some:,}; by Zipf's law any of {all_:,}.",
            f"Memory is the growth of all processes while {some:,} queues got their first message.",
        ],
    )


def _fill_each(server: processes.Process, post: str, numbers: Sequence[int]) -> None:
    traffic.run(server, Job([post], 201, order=numbers), seconds=600, warm=0, count=len(numbers))


def _compare_orders(samples: dict[str, list[Sample]], names: list[str]) -> Iterator[Verdict]:
    """Compares rate and CPU of each method: any queue with one, and all queues with any of some."""
    one, some, all_ = names
    for method in ("POST", "GET"):
        for over, under in ((some, one), (all_, some)):
            a, b = samples[f"{method}, {over}"], samples[f"{method}, {under}"]
            rate = pairwise_ratios(traffic.rates(a), traffic.rates(b))
            yield Verdict(f"{method}: rate, {over} / {under}", rate, goal=0.8)
            cpu = pairwise_ratios([sample.cpu for sample in a], [sample.cpu for sample in b])
            yield Verdict(f"{method}: CPU, {over} / {under}", cpu, goal=1.2, better="lower")


def find_fastest(samples: dict[str, list[Sample]]) -> str:
    return max(samples, key=lambda name: traffic.row(name, samples[name]).median)


def compare_with_fastest(
    samples: dict[str, list[Sample]], prefix: str, goal: float, aim: float, notes: list[str]
) -> Report:
    """Compares every other side with the fastest side whose name begins with ``prefix``."""
    best = find_fastest({name: runs for name, runs in samples.items() if name.startswith(prefix)})
    under = traffic.rates(samples[best])
    verdicts = [
        Verdict(f"{name} / {best}", pairwise_ratios(traffic.rates(runs), under), goal=goal, aim=aim)
        for name, runs in samples.items()
        if not name.startswith(prefix)
    ]
    return Report("", "", [traffic.row(name, runs) for name, runs in samples.items()], verdicts, notes)


def run_baseline(action: str, path: Path, seconds: float) -> Sample:
    printed = processes.run_module(rows.__name__, action, path, seconds, seconds=seconds + 60)
    return Sample(rate=float(printed))


def check_slice(server: processes.Process, request: str) -> None:
    """Checks the number of messages, and that they have the fields that the baseline encodes.

    Raises:
        Void: The answer differs.
    """
    path = request.split(" ", 2)[1]
    get = Request(f"http://127.0.0.1:{server.port}{path}", headers={"Authorization": f"Application {traffic.KEY}"})
    with urlopen(get, timeout=30) as answer:
        messages = json.load(answer)["messages"]
    if len(messages) != BATCH or set(messages[0]) != {"message_id", "timestamp", "partition", "body"}:
        raise Void(f"unexpected slice: {len(messages)} messages, {messages[:1]}")
