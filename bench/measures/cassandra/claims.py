"""Measures claims on Cassandra against an in-memory SQS, and against other claims."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Mapping
from functools import partial

from bench.baselines import elasticmq
from bench.harness import Bench, measure
from bench.load import traffic
from bench.load.traffic import Sample
from bench.load.waiting import read_metric
from bench.measures.claims import CLIENTS, Supply, compare_ways, make_claim_runs, run, run_cycles
from bench.results import Report, Verdict, pairwise_ratios
from bench.started import nodes, on_cassandra, service
from queuey.messages import NewMessage, Queue, QueueSpec
from queuey.storage import Store, bridge

WARM_UP_ROUNDS = 8
"""Warm-up rounds, in which the JVM compiles. Afterwards the same claims cost a node half as much CPU."""
QUEUE = "jobs"
PARTITIONS = 8
SHARED_COUNTERS = ("queuey_claims_operations_total", "queuey_claims_appends_total")
MAX_REQUESTS_PER_TRANSACTION = CLIENTS / 2
"""Max requests per transaction: while it runs with some clients' requests, the others wait for the next one."""


@measure("cassandra-claim1", "Claims of one message and their acknowledgement, in two requests and in one")
def compare_single_claims(bench: Bench) -> Report:
    with (
        nodes.cassandra(bench) as cassandra,
        contextlib.closing(on_cassandra.prepare(cassandra)) as store,
        on_cassandra.serve(cassandra, bench.new_directory("queuey")) as server,
    ):
        queue, _ = bridge.run(
            store.catalogue.create_queue(service.APPLICATION, QUEUE, QueueSpec(partitions=PARTITIONS))
        )
        supply = Supply(partial(fill, store, queue))
        calls: dict[str, Callable[[], Sample]] = {
            f"queuey{way}": partial(supply.run, cycles, count)
            for way, (count, cycles) in make_claim_runs(bench, server, QUEUE, cassandra).items()
        }
        bench.interleave(calls, bench.count(WARM_UP_ROUNDS, 1))
        before = [read_metric(server, name) for name in SHARED_COUNTERS]
        samples = bench.interleave(calls, bench.count(5, 1))
        requests, transactions = (
            read_metric(server, name) - old for name, old in zip(SHARED_COUNTERS, before, strict=True)
        )
    rows = [traffic.row(name, runs) for name, runs in samples.items()]
    note = f"{CLIENTS} callers, {traffic.BODY_BYTES} B bodies, {PARTITIONS} partitions; messages a second."
    sharing = Verdict(
        "requests that share a transaction", [requests / transactions], unit="", goal=MAX_REQUESTS_PER_TRANSACTION
    )
    return Report("cassandra-claim1", "", rows, [compare_ways(samples), sharing], [note])


@measure(
    "cassandra-claim100",
    f"Claims of 100 messages and their acknowledgement, against ElasticMQ {elasticmq.VERSION} in batches of 10",
)
def compare_batch_claims(bench: Bench) -> Report:
    """The baseline receives and deletes full batches of SQS, in memory; both sides use HTTP.

    Messages that are claimed before the read delay has passed are read twice. Those of a backlog are not.
    """
    count = bench.count(40_000, 1_000)
    texts = traffic.bodies(1000) * (count // 1000)
    with (
        nodes.cassandra(bench) as cassandra,
        elasticmq.serve(bench.new_directory("elasticmq")) as other,
        contextlib.closing(on_cassandra.prepare(cassandra)) as store,
        on_cassandra.serve(cassandra, bench.new_directory("queuey")) as server,
    ):
        cycles = partial(run, server, count=count, limit=100, connections=4, queue=QUEUE, backend=cassandra)
        queue, _ = bridge.run(
            store.catalogue.create_queue(service.APPLICATION, QUEUE, QueueSpec(partitions=PARTITIONS))
        )

        def receives() -> Sample:
            elasticmq.fill(other, texts)
            return run_cycles(other, elasticmq.make_receive_dialect(), count, 4)

        def backlog() -> Sample:
            on_cassandra.let_appear(store, queue)
            return cycles()

        calls: dict[str, Callable[[], Sample]] = {
            "queuey, limit 100": partial(fill_and_run, store, queue, cycles, count),
            "queuey, limit 100, a backlog": partial(fill_and_run, store, queue, backlog, count),
            "elasticmq, json, 10": receives,
        }
        bench.interleave(calls, bench.count(WARM_UP_ROUNDS, 1))
        samples = bench.interleave(calls, bench.count(5, 1))
    rows = [traffic.row(name, runs) for name, runs in samples.items()]
    notes = [f"4 clients, {traffic.BODY_BYTES} B bodies; {PARTITIONS} partitions; messages a second."]
    return Report("cassandra-claim100", "", rows, compare_with_last(samples, goal=1, aim=2), notes)


@measure("cassandra-hot", "Claims of one message from one partition: four processes of the service against one")
def measure_hot_queue(bench: Bench) -> Report:
    """The processes share the queue's log but do not communicate with each other."""
    count = bench.count(4_000, 200)
    with contextlib.ExitStack() as stack:
        cassandra = stack.enter_context(nodes.cassandra(bench))
        store = stack.enter_context(contextlib.closing(on_cassandra.prepare(cassandra)))
        calls: dict[str, Callable[[], Sample]] = {}
        for workers in (1, 4):
            server = stack.enter_context(on_cassandra.serve(cassandra, bench.new_directory("queuey"), workers=workers))
            name = f"hot-{workers}"
            queue, _ = bridge.run(store.catalogue.create_queue(service.APPLICATION, name, QueueSpec()))
            cycles = partial(run, server, count=count, limit=1, connections=CLIENTS, queue=name)
            calls[f"{workers} process(es)"] = partial(fill_and_run, store, queue, cycles, count)
        bench.interleave(calls, 1)
        samples = bench.interleave(calls, bench.count(5, 1))
    one_process, four_processes = (traffic.rates(samples[name]) for name in calls)
    rows = [traffic.row(name, runs) for name, runs in samples.items()]
    verdict = Verdict("four processes / one", pairwise_ratios(four_processes, one_process), goal=0.5, aim=1)
    notes = [f"{CLIENTS} callers, {traffic.BODY_BYTES} B bodies, one partition; messages a second."]
    return Report("cassandra-hot", "", rows, [verdict], notes)


@measure("cassandra-dedup100", "Claims of 100 messages of a dedup queue on Cassandra, against a plain queue")
def measure_dedup_claims(bench: Bench) -> Report:
    """All bodies differ, and all messages are stored before the first claim, so covers are written and looked up."""
    count, numbers = bench.count(40_000, 1_000), itertools.count()
    with (
        nodes.cassandra(bench) as cassandra,
        contextlib.closing(on_cassandra.prepare(cassandra)) as store,
        on_cassandra.serve(cassandra, bench.new_directory("queuey")) as server,
    ):

        def claim_new_queue(kind: str) -> Sample:
            queue, _ = bridge.run(
                store.catalogue.create_queue(service.APPLICATION, f"{kind}-{next(numbers)}", QueueSpec(kind=kind))
            )
            for n in range(0, count, 1000):
                service.fill(store, queue, [f"{n}/{text}" for text in traffic.bodies(min(1000, count - n))], 1000)
            on_cassandra.let_appear(store, queue)
            return run(server, count=count, limit=100, connections=4, queue=queue.name, backend=cassandra)

        calls = {kind: partial(claim_new_queue, kind) for kind in ("dedup", "plain")}
        bench.interleave(calls, 1)  # Warms up Cassandra's JVM.
        samples = bench.interleave(calls, bench.count(5, 1))
    ratio = pairwise_ratios(traffic.rates(samples["dedup"]), traffic.rates(samples["plain"]))
    rows = [traffic.row(name, runs) for name, runs in samples.items()]
    notes = [f"4 clients, {count:,} messages of {traffic.BODY_BYTES} B wait in one partition."]
    return Report("cassandra-dedup100", "", rows, [Verdict("dedup / plain", ratio, goal=0.5, aim=0.8)], notes)


def fill_and_run(store: Store, queue: Queue, cycles: Callable[[], Sample], count: int) -> Sample:
    fill(store, queue, count)
    return cycles()


def fill(store: Store, queue: Queue, count: int) -> None:
    """Appends ``count`` messages, in turn to all partitions of the queue."""
    texts = traffic.bodies(1000)
    for start in range(0, count, len(texts)):
        size = min(len(texts), count - start)
        messages = [NewMessage(texts[n], 1 + n % queue.partitions, service.THREE_DAYS) for n in range(size)]
        bridge.run(store.messages.append(queue, messages))


def compare_with_last(
    samples: Mapping[str, list[Sample]], goal: float | None = None, aim: float | None = None
) -> list[Verdict]:
    *ours, theirs = samples
    return [
        Verdict(
            f"{name} / {theirs}",
            pairwise_ratios(*map(traffic.rates, (samples[name], samples[theirs]))),
            goal=goal,
            aim=aim,
        )
        for name in ours
    ]
