"""Measures posts, reads and claims on Cassandra; posts and reads against the same work without the service."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from bench.harness import Bench, Void, measure
from bench.load import generator as load
from bench.load import traffic
from bench.load.traffic import Job, Sample
from bench.measures import claims
from bench.measures.claims import CLIENTS, Supply, compare_ways, make_claim_runs
from bench.measures.over_http import BATCH, CONNECTIONS, QUEUE
from bench.results import Report, Verdict, pairwise_ratios
from bench.started import nodes, on_cassandra, processes, service
from bench.started.nodes import Nodes
from queuey.model.messages import NewMessage, Queue, QueueSpec
from queuey.storage import Store, bridge

WARM_SECONDS = 5.0
"""Warm-up of each side before the measurement, in which Cassandra's JVM compiles."""
ROW_AGE_SECONDS = 1.0
"""Seconds after which no row of a queue is young enough for a post: more than C."""
COUNTED = "queuey_store_requests_total", "queuey_store_messages_appended_total"
JOBS = "jobs"
PARTITIONS = 8
"""Partitions of the queue that messages are claimed from."""
WARM_UP_ROUNDS = 8
"""Warm-up rounds of claims. Afterwards the same claims cost a node half as much CPU."""


def warm_up(bench: Bench, server: processes.Process, job: Job, connections: int = CONNECTIONS) -> None:
    traffic.run(server, job, seconds=bench.duration(WARM_SECONDS, 0.3), connections=connections)


@measure("cassandra-post1", "POST of one message on Cassandra")
def measure_single_posts(bench: Bench) -> Report:
    """Acknowledged before the fsync, which is Cassandra's default."""
    job = traffic.posts_of_one(QUEUE, traffic.bodies(64))
    with nodes.cassandra(bench) as cassandra:
        on_cassandra.prepare(cassandra).close()
        return measure_alone(bench, cassandra, job, f"{traffic.BODY_BYTES} B bodies; messages a second.")


@measure("cassandra-post100", "POST of 100 messages on Cassandra")
def measure_batch_posts(bench: Bench) -> Report:
    job = traffic.posts_of_many(QUEUE, traffic.bodies(BATCH * 16), BATCH)
    with nodes.cassandra(bench) as cassandra:
        on_cassandra.prepare(cassandra).close()
        note = f"{traffic.BODY_BYTES} B bodies; messages a second."
        return measure_alone(bench, cassandra, job, note)


@measure("cassandra-get100", "GET of 100 messages on Cassandra, from random places of a queue")
def measure_reads(bench: Bench) -> Report:
    count = bench.count(200_000, 5_000)
    with nodes.cassandra(bench) as cassandra:
        job = fill_and_make_reads(bench, cassandra, count)
        return measure_alone(bench, cassandra, job, f"Slices of {BATCH} of {count:,} messages.")


def measure_alone(bench: Bench, cassandra: Nodes, job: Job, note: str) -> Report:
    """Measures a job over 1, 4 and 64 connections."""
    with on_cassandra.serve(cassandra, bench.new_directory("queuey")) as server:
        warm_up(bench, server, job)
        run = partial(traffic.run, server, job, seconds=bench.duration(2, 0.3), backend=cassandra)
        calls = {
            f"queuey, {count} connection{'s' if count > 1 else ''}": partial(run, connections=count)
            for count in (1, 4, CONNECTIONS)
        }
        samples = bench.interleave(calls, bench.count(5, 1))
    return Report("", "", [traffic.row(name, runs) for name, runs in samples.items()], notes=[note])


def fill_and_make_reads(bench: Bench, cassandra: Nodes, count: int) -> Job:
    """Fills the queue of a new store; returns GETs of :data:`BATCH` messages from every batch, in random order.

    Raises:
        Void: Not all messages can be read.
    """
    store = on_cassandra.prepare(cassandra)
    queue = bridge.run(store.catalogue.queue(service.APPLICATION, "bench"))
    service.fill(store, queue, traffic.bodies(1000), count)
    on_cassandra.let_appear(store, queue)
    places = service.page_starts(store, queue, BATCH)
    store.close()
    if len(places) != count // BATCH:
        raise Void(f"{len(places) * BATCH:,} messages to read instead of {count:,}")
    bench.rng.shuffle(places)
    return traffic.gets([f"{QUEUE}?limit={BATCH}&since={place}" for place in places], BATCH)


@measure("cassandra-many", "POST of one message on Cassandra: one queue, 64, and any of 10,000 that are not in memory")
def compare_many_queues(bench: Bench) -> Report:
    """A round posts to each of the 10,000 queues at most once, so the row of each is older than C and is read again."""
    count, seconds = bench.count(10_000, 600), bench.duration(2, 0.3)
    path = f"{service.BASE}/q{load.COUNTER.decode()}"
    post = traffic.request("POST", path, traffic.bodies(1)[0], {"Content-Type": "text/plain"})
    requests: dict[str, list[float]] = {}
    with nodes.cassandra(bench) as cassandra:
        on_cassandra.prepare(cassandra, queues=[f"q{number:07d}" for number in range(count)]).close()
        bench.print_progress(f"{count:,} queues are there")
        with on_cassandra.serve(cassandra, bench.new_directory("queuey")) as server:

            def run(name: str, order: Sequence[int]) -> Sample:
                time.sleep(ROW_AGE_SECONDS)
                before = [service.read_metric(server, metric) for metric in COUNTED]
                job, most = Job([post], 201, order=order), len(order) * 8 // 10 if len(order) == count else 0
                sample = traffic.run(server, job, seconds=seconds, count=most, backend=cassandra)
                time.sleep(ROW_AGE_SECONDS)  # the counters follow
                sent, stored = (service.read_metric(server, metric) for metric in COUNTED)
                requests.setdefault(name, []).append((sent - before[0]) / (stored - before[1]))
                return sample

            orders = {
                "one queue": [0],
                "64 queues": range(64),
                f"any of {count:,}": bench.rng.sample(range(count), count),
            }
            calls: dict[str, Callable[[], Sample]] = {name: partial(run, name, order) for name, order in orders.items()}
            bench.interleave(calls, bench.count(WARM_UP_ROUNDS, 1))
            requests.clear()
            samples = bench.interleave(calls, bench.count(5, 1))
    rows = [traffic.row(name, runs) for name, runs in samples.items()]
    for row in rows:
        row.details["requests/message"] = statistics.median(requests[row.name])
    one, some, cold = ([sample.cpu for sample in runs] for runs in samples.values())
    verdicts = [
        Verdict("CPU, any queue / one queue", pairwise_ratios(cold, one), goal=2.5, better="lower"),
        Verdict("CPU, any queue / 64 queues", pairwise_ratios(cold, some), goal=2.5, better="lower"),
        Verdict("requests a post, any queue", requests[f"any of {count:,}"], "", goal=2.05, better="lower"),
    ]
    notes = [
        f"{CONNECTIONS} connections. Requests are all that the service sends to Cassandra, also in the background."
    ]
    return Report("", "", rows, verdicts, notes)


@measure("cassandra-three", "POST of one to three nodes with three copies, against one node on the same machine")
def compare_three_nodes_with_one(bench: Bench) -> Report:
    """All nodes run all the time; the nodes that are not measured are idle."""
    job = traffic.posts_of_one(QUEUE, traffic.bodies(64))
    with contextlib.ExitStack() as stack:
        calls: dict[str, Callable[[], Sample]] = {}
        for count in (3, 1):
            cassandra = stack.enter_context(nodes.cassandra(bench, count))
            on_cassandra.prepare(cassandra, patient=True).close()
            server = stack.enter_context(on_cassandra.serve(cassandra, bench.new_directory("queuey")))
            warm_up(bench, server, job)
            run = partial(traffic.run, server, job, seconds=bench.duration(2, 0.3), backend=cassandra)
            calls[f"POST of one, {count} node(s)"] = run
        samples = bench.interleave(calls, bench.count(5, 1))
    three, one = (traffic.rates(runs) for runs in samples.values())
    rows = [traffic.row(name, runs) for name, runs in samples.items()]
    notes = [
        f"{CONNECTIONS} connections. Writes have 3 s, as in several data centres: four JVMs share two processors.",
        "A larger share of the two processors goes to Cassandra here than on machines of their own.",
    ]
    return Report("", "", rows, [Verdict("3 nodes / 1 node", pairwise_ratios(three, one))], notes)


@measure("cassandra-claim1", "Claims of one message and their acknowledgement on Cassandra, in two requests and in one")
def measure_single_claims(bench: Bench) -> Report:
    with serve_jobs(bench) as (cassandra, store, server):
        supply = Supply(partial(fill_jobs, store))
        calls: dict[str, Callable[[], Sample]] = {
            f"queuey{way}": partial(supply.run, cycles, count)
            for way, (count, cycles) in make_claim_runs(bench, server, JOBS, cassandra).items()
        }
        bench.interleave(calls, bench.count(WARM_UP_ROUNDS, 1))
        samples = bench.interleave(calls, bench.count(5, 1))
    rows = [traffic.row(name, runs) for name, runs in samples.items()]
    notes = [f"{CLIENTS} callers, {traffic.BODY_BYTES} B bodies, {PARTITIONS} partitions; messages a second."]
    return Report("", "", rows, [compare_ways(samples)], notes)


@measure("cassandra-claim100", "Claims of 100 messages and their acknowledgement on Cassandra")
def measure_batch_claims(bench: Bench) -> Report:
    """Messages that are claimed before the read delay has passed are read twice. Those of a backlog are not."""
    count = bench.count(40_000, 1_000)
    with serve_jobs(bench) as (cassandra, store, server):
        cycles = partial(claims.run, server, count=count, limit=100, connections=4, queue=JOBS, backend=cassandra)

        def claim(*, waits: bool) -> Sample:
            queue = fill_jobs(store, count)
            if waits:
                on_cassandra.let_appear(store, queue)
            return cycles()

        calls = {"queuey, limit 100": partial(claim, waits=False), "queuey, a backlog": partial(claim, waits=True)}
        bench.interleave(calls, bench.count(WARM_UP_ROUNDS, 1))
        samples = bench.interleave(calls, bench.count(5, 1))
    rows = [traffic.row(name, runs) for name, runs in samples.items()]
    notes = [f"4 clients, {traffic.BODY_BYTES} B bodies; {PARTITIONS} partitions; messages a second."]
    return Report("", "", rows, notes=notes)


@contextlib.contextmanager
def serve_jobs(bench: Bench) -> Iterator[tuple[Nodes, Store, processes.Process]]:
    """Runs a node and a service with an empty queue :data:`JOBS`."""
    with (
        nodes.cassandra(bench) as cassandra,
        contextlib.closing(on_cassandra.prepare(cassandra)) as store,
        on_cassandra.serve(cassandra, bench.new_directory("queuey")) as server,
    ):
        bridge.run(store.catalogue.create_queue(service.APPLICATION, JOBS, QueueSpec(partitions=PARTITIONS)))
        yield cassandra, store, server


def fill_jobs(store: Store, count: int) -> Queue:
    """Appends ``count`` messages to :data:`JOBS`, in turn to all partitions."""
    queue, texts = bridge.run(store.catalogue.queue(service.APPLICATION, JOBS)), traffic.bodies(1000)
    for start in range(0, count, len(texts)):
        size = min(len(texts), count - start)
        messages = [NewMessage(texts[n], 1 + n % PARTITIONS, service.THREE_DAYS) for n in range(size)]
        bridge.run(store.messages.append(queue, messages))
    return queue
