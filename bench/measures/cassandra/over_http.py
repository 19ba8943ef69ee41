"""Measures posts and reads over HTTP on Cassandra against the same work without the service."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from bench.baselines import cassandra_table, elasticmq, slices
from bench.harness import Bench, Void, measure
from bench.load import traffic, wrk
from bench.load.traffic import Job, Sample
from bench.load.wrk import BY_WRK
from bench.measures.over_http import BATCH, CONNECTIONS, QUEUE, check_slice, find_fastest
from bench.measures.peers import Goals, compare_with_elasticmq
from bench.results import Report, Row, Verdict, pairwise_ratios
from bench.started import nodes, on_cassandra, processes, service
from bench.started.nodes import Nodes
from queuey.storage import bridge

VIEW_APP = "bench.baselines.session_execute:app"
WARM_SECONDS = 5.0
"""Warm-up of each side before the measurement, in which Cassandra's JVM compiles."""
CALLERS = (1, 2, 4, 8)


class Resources(NamedTuple):
    workers: int
    threads: int

    @property
    def text(self) -> str:
        return f"{self.workers} x {self.threads} threads"


EQUAL_RESOURCES = (Resources(1, service.THREADS), Resources(1, CONNECTIONS), Resources(2, CONNECTIONS // 2))
"""The service's default; a thread per connection, as usual for blocking views; the same in two processes."""


def warm_up(bench: Bench, server: processes.Process, job: Job, connections: int = CONNECTIONS) -> None:
    traffic.run(server, job, seconds=bench.duration(WARM_SECONDS, 0.3), connections=connections)


@measure("cassandra-post1", "POST of one message on Cassandra, against a plain view that calls session.execute")
def compare_single_posts(bench: Bench) -> Report:
    """Acknowledged before the fsync, which is Cassandra's default."""
    with nodes.cassandra(bench) as cassandra:
        return compare_with_view(bench, cassandra, goal=2, aim=4)


@measure("cassandra-post1-fsync", "The same with commitlog_sync: batch, an fsync before every acknowledgement")
def compare_single_posts_after_fsync(bench: Bench) -> Report:
    with nodes.cassandra(bench, sync="batch") as cassandra:
        return compare_with_view(bench, cassandra, goal=3, aim=5)


def compare_with_view(bench: Bench, cassandra: Nodes, *, goal: float, aim: float) -> Report:
    """Compares at equal workers and threads, also by wrk if it is installed.

    The view gets JSON. The service gets plain text; at its default threads also that JSON.
    """
    texts = traffic.bodies(64)
    plain, as_json = traffic.posts_of_one(QUEUE, texts), traffic.posts_of_many(QUEUE, texts, 1)
    cassandra_table.prepare(cassandra.address)
    on_cassandra.prepare(cassandra).close()
    environment = {"BENCH_CASSANDRA": cassandra.address.text}
    seconds = bench.duration(2.5, 0.3)
    with contextlib.ExitStack() as stack:
        sides: dict[str, tuple[processes.Process, Job]] = {}
        for means in EQUAL_RESOURCES:
            serving = on_cassandra.serve(
                cassandra, bench.new_directory("queuey"), threads=means.threads, workers=means.workers
            )
            server = stack.enter_context(serving)
            sides[f"queuey, {means.text}"] = server, plain
            if means == EQUAL_RESOURCES[0]:
                sides[f"queuey, {means.text}, JSON"] = server, as_json
            view = processes.serve_wsgi(
                VIEW_APP,
                bench.new_directory("view"),
                threads=means.threads,
                workers=means.workers,
                environment=environment,
            )
            sides[f"view, {means.text}"] = stack.enter_context(view), as_json
        for server, job in sides.values():
            warm_up(bench, server, job)
        run = partial(traffic.run, seconds=seconds, backend=cassandra)
        calls = {name: partial(run, server, job) for name, (server, job) in sides.items()}
        if wrk.PATH is not None:
            calls |= {name + BY_WRK: partial(wrk.run, *side, seconds=seconds) for name, side in sides.items()}
        samples = bench.interleave(calls, bench.count(5, 1))
    verdicts = compare_equal_resources(samples, "", goal, aim)
    if wrk.PATH is not None:
        verdicts += compare_equal_resources(samples, BY_WRK, goal, aim)
    note = f"{CONNECTIONS} connections, {traffic.BODY_BYTES} B bodies; workers x threads of each side as its name says."
    return Report("", "", [traffic.row(name, runs) for name, runs in samples.items()], verdicts, [note])


def compare_equal_resources(samples: dict[str, list[Sample]], generator: str, goal: float, aim: float) -> list[Verdict]:
    """Compares, for one generator, sides of equal means, and the service's default with the best view.

    Only the comparisons of equal means have a goal.
    """
    rates = {name: traffic.rates(runs) for name, runs in samples.items()}
    verdicts = []
    for means in EQUAL_RESOURCES:
        ratios = pairwise_ratios(rates[f"queuey, {means.text}{generator}"], rates[f"view, {means.text}{generator}"])
        verdicts.append(Verdict(f"{means.text} each: queuey / view{generator}", ratios, goal=goal, aim=aim))
    default = EQUAL_RESOURCES[0].text
    best = find_fastest(
        {f"view, {means.text}{generator}": samples[f"view, {means.text}{generator}"] for means in EQUAL_RESOURCES}
    )
    default_sides = (f"queuey, {default}, JSON{generator}", f"queuey, {default}{generator}")
    return verdicts + [Verdict(f"{ours} / {best}", pairwise_ratios(rates[ours], rates[best])) for ours in default_sides]


@measure("cassandra-post100", "POST of 100 messages on Cassandra, against one process that writes batches of 100 rows")
def compare_batch_posts(bench: Bench) -> Report:
    """The baseline does no HTTP and no JSON; its best number of callers counts."""
    job = traffic.posts_of_many(QUEUE, traffic.bodies(BATCH * 16), BATCH)
    seconds = bench.duration(2, 0.3)
    with nodes.cassandra(bench) as cassandra:
        cassandra_table.prepare(cassandra.address)
        on_cassandra.prepare(cassandra).close()
        with on_cassandra.serve(cassandra, bench.new_directory("queuey")) as server:
            warm_up(bench, server, job)
            run_baseline(cassandra, "insert", 2, bench.duration(WARM_SECONDS, 0.3))
            calls = make_http_runs(cassandra, server, job, seconds, (1, 4, CONNECTIONS))
            calls |= {raw_name(n): partial(run_baseline, cassandra, "insert", n, seconds) for n in CALLERS}
            samples = bench.interleave(calls, bench.count(5, 1))
    return compare_with_best_baseline(samples, 1, 1.5, [f"{traffic.BODY_BYTES} B bodies; messages a second."])


@measure("cassandra-get100", "GET of 100 messages on Cassandra, against one process that reads slices of 100 rows")
def compare_reads(bench: Bench) -> Report:
    """Reads slices from random positions. The baseline does not process its rows."""
    count = bench.count(200_000, 5_000)
    seconds = bench.duration(2, 0.3)
    with nodes.cassandra(bench) as cassandra:
        cassandra_table.prepare(cassandra.address)
        slices.fill(cassandra.address, count)
        job = fill_and_make_reads(bench, cassandra, count)
        with on_cassandra.serve(cassandra, bench.new_directory("queuey")) as server:
            check_slice(server, job.requests[0])
            warm_up(bench, server, job)
            run_baseline(cassandra, "read", 2, bench.duration(WARM_SECONDS, 0.3))
            calls = make_http_runs(cassandra, server, job, seconds, (1, 4, CONNECTIONS))
            calls |= {raw_name(n): partial(run_baseline, cassandra, "read", n, seconds) for n in CALLERS}
            samples = bench.interleave(calls, bench.count(5, 1))
    size = samples[http_name(CONNECTIONS)][0].size
    note = f"Slices of {BATCH} of {count:,} messages, from random places; an answer has {size:,.0f} B."
    return compare_with_best_baseline(samples, 1, 2, [note])


def fill_and_make_reads(bench: Bench, cassandra: Nodes, count: int, *, patient: bool = False) -> Job:
    """Fills the queue of a new store; returns GETs of :data:`BATCH` messages from every batch, in random order.

    Raises:
        Void: Not all messages can be read.
    """
    store = on_cassandra.prepare(cassandra, patient=patient)
    queue = bridge.run(store.catalogue.queue(service.APPLICATION, "bench"))
    service.fill(store, queue, traffic.bodies(1000), count)
    on_cassandra.let_appear(store, queue)
    places = service.page_starts(store, queue, BATCH)
    store.close()
    if len(places) != count // BATCH:
        raise Void(f"{len(places) * BATCH:,} messages to read instead of {count:,}")
    bench.rng.shuffle(places)
    return traffic.gets([f"{QUEUE}?limit={BATCH}&since={place}" for place in places], BATCH)


def http_name(connections: int) -> str:
    return f"queuey, {connections} {'connection' if connections == 1 else 'connections'}"


def raw_name(callers: int) -> str:
    return f"driver, {callers} {'caller' if callers == 1 else 'callers'}"


def make_http_runs(
    cassandra: Nodes, server: processes.Process, job: Job, seconds: float, connections: tuple[int, ...]
) -> dict[str, Callable[[], Sample]]:
    run = partial(traffic.run, server, job, seconds=seconds, backend=cassandra)
    return {http_name(count): partial(run, connections=count) for count in connections}


def run_baseline(cassandra: Nodes, action: str, callers: int, seconds: float) -> Sample:
    environment = cassandra.environment()
    printed = processes.run_module(
        slices.__name__, action, callers, seconds, seconds=seconds + 60, environment=environment
    )
    rate, cpu = json.loads(printed)
    return Sample(rate=rate, cpu=cpu)


def compare_with_best_baseline(samples: dict[str, list[Sample]], goal: float, aim: float, notes: list[str]) -> Report:
    """Compares the service with the baseline's best number of callers; the goals apply at 64 connections."""
    best = find_fastest({name: runs for name, runs in samples.items() if name.startswith("driver")})
    under = traffic.rates(samples[best])
    rows, verdicts = [], []
    for name, runs in samples.items():
        if name.startswith("driver"):
            cpu = sorted(run.cpu for run in runs)[len(runs) // 2]
            rows.append(Row(name, traffic.rates(runs), "messages/s", {"its CPU us/message": cpu}))
            continue
        rows.append(traffic.row(name, runs))
        goals = (goal, aim) if name == http_name(CONNECTIONS) else (None, None)
        verdicts.append(
            Verdict(f"{name} / {best}", pairwise_ratios(traffic.rates(runs), under), goal=goals[0], aim=goals[1])
        )
    return Report("", "", rows, verdicts, notes)


@measure(
    "cassandra-elasticmq", f"ElasticMQ {elasticmq.VERSION}, in memory and warm, over HTTP; the service on Cassandra"
)
def compare_elasticmq_on_cassandra(bench: Bench) -> Report:
    texts = traffic.bodies(1600)
    with nodes.cassandra(bench) as cassandra:
        on_cassandra.prepare(cassandra).close()
        with (
            elasticmq.serve(bench.new_directory("elasticmq")) as other,
            on_cassandra.serve(cassandra, bench.new_directory("queuey")) as ours,
        ):
            warm_up(bench, ours, traffic.posts_of_one(QUEUE, texts[:64]))
            warm_up(bench, ours, traffic.posts_of_many(QUEUE, texts, BATCH))
            return compare_with_elasticmq(bench, other, ours, Goals((1.5, 2.5), (8, 15)))


@measure("cassandra-three", "Three nodes, three copies, QUORUM, against one node with one copy on the same machine")
def compare_three_nodes_with_one(bench: Bench) -> Report:
    """All nodes run all the time; the nodes that are not measured are idle."""
    texts = traffic.bodies(1600)
    seconds = bench.duration(2, 0.3)
    with contextlib.ExitStack() as stack:
        calls: dict[str, Callable[[], Sample]] = {}
        for count in (1, 3):
            cassandra = stack.enter_context(nodes.cassandra(bench, count))
            jobs = {
                "GET of 100": fill_and_make_reads(bench, cassandra, bench.count(50_000, 5_000), patient=True),
                "POST of one": traffic.posts_of_one(QUEUE, texts[:64]),
                "POST of 100": traffic.posts_of_many(QUEUE, texts, BATCH),
            }
            server = stack.enter_context(on_cassandra.serve(cassandra, bench.new_directory("queuey")))
            for what, job in jobs.items():
                warm_up(bench, server, job)
                calls[f"{what}, {count} node(s)"] = partial(
                    traffic.run, server, job, seconds=seconds, backend=cassandra
                )
        samples = bench.interleave(calls, bench.count(5, 1))
    rates = {name: traffic.rates(runs) for name, runs in samples.items()}
    verdicts = [
        Verdict(f"{what}: 3 nodes / 1 node", pairwise_ratios(rates[f"{what}, 3 node(s)"], rates[f"{what}, 1 node(s)"]))
        for what in ("POST of one", "POST of 100", "GET of 100")
    ]
    rows = [traffic.row(name, runs) for name, runs in sorted(samples.items(), reverse=True)]
    notes = [
        f"{CONNECTIONS} connections. Writes have 3 s, as in several data centres: four JVMs share two processors.",
        "A larger share of the two processors goes to Cassandra here than on machines of their own.",
    ]
    return Report("", "", rows, verdicts, notes)
