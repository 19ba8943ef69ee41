"""Measures the max rate of workers."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from bench.harness import Bench, measure
from bench.load import traffic
from bench.results import Report, Row, Verdict, pairwise_ratios
from bench.started import nodes, on_cassandra, service, workers
from bench.started.processes import Process
from bench.started.workers import QUEUE, Pace
from queuey.messages import NewMessage, QueueSpec
from queuey.storage import Store, bridge

PARTITIONS = (1, 8)
WORKERS = (1, 4)


def create_and_fill(store: Store, partitions: int, count: int) -> None:
    """Creates the queue and appends messages, a thousand to each partition in turn: whole thousands up to ``count``."""
    queue = bridge.run(store.catalogue.create_queue(service.APPLICATION, QUEUE, QueueSpec(partitions=partitions)))[0]
    texts = traffic.bodies(1000)
    for number in range(count // 1000):
        bridge.run(
            store.messages.append(
                queue, [NewMessage(text, number % partitions + 1, service.THREE_DAYS) for text in texts]
            )
        )


@contextlib.contextmanager
def serve_filled(bench: Bench, partitions: int, count: int) -> Iterator[Process]:
    directory = bench.new_directory(f"queuey-{partitions}")
    store = service.prepare(directory, ())
    create_and_fill(store, partitions, count)
    store.close()
    with service.serve(directory) as server:
        bench.print_progress(f"{count:,} messages in {partitions} partition(s)")
        yield server


@measure("qdo-worker", "One worker with empty plain and async handlers, from one partition and from eight")
def measure_one_worker(bench: Bench) -> Report:
    count = bench.count(1_000_000, 40_000)
    with contextlib.ExitStack() as stack:
        calls: dict[str, Callable[[], Pace]] = {}
        for partitions in PARTITIONS:
            server = stack.enter_context(serve_filled(bench, partitions, count))
            for handler in workers.HANDLERS:
                calls[side_name(f"worker, {handler}", partitions)] = partial(
                    time_workers, bench, server, count, handler
                )
        samples = bench.interleave(calls, bench.count(5, 1))
    notes = [
        f"{count:,} messages of {traffic.BODY_BYTES} B, handled by their own count.",
        (
            f"Measured from {workers.WARM_SHARE:.0%} to {workers.END_SHARE:.0%} of them. "
            "The service's groups, default settings."
        ),
    ]
    return Report("", "", [row(side, runs) for side, runs in samples.items()], notes=notes)


@measure("qdo-four", "Four workers against one, eight partitions, on SQLite")
def compare_four_workers(bench: Bench) -> Report:
    count = bench.count(1_000_000, 48_000)
    with serve_filled(bench, 8, count) as server:
        return compare_workers(bench, server, count)


@measure("qdo-four-cassandra", "Four workers against one, eight partitions, on Cassandra")
def compare_four_workers_on_cassandra(bench: Bench) -> Report:
    count = bench.count(320_000, 24_000)
    with nodes.cassandra(bench) as cassandra:
        store = on_cassandra.prepare(cassandra, queues=())
        create_and_fill(store, 8, count)
        on_cassandra.let_appear(store, bridge.run(store.catalogue.queue(service.APPLICATION, QUEUE)))
        store.close()
        with on_cassandra.serve(cassandra, bench.new_directory("queuey")) as server:
            bench.print_progress(f"{count:,} messages in 8 partitions")
            time_workers(bench, server, count, "plain")
            return compare_workers(bench, server, count)


def compare_workers(bench: Bench, server: Process, messages: int) -> Report:
    calls = {
        f"{count} worker(s)": partial(time_workers, bench, server, messages, "plain", count=count) for count in WORKERS
    }
    samples = bench.interleave(calls, bench.count(5, 1))
    single, several_rates = (rates(samples[side]) for side in calls)
    verdict = Verdict(f"{WORKERS[1]} workers / {WORKERS[0]} worker", pairwise_ratios(several_rates, single))
    note = f"{messages:,} messages of {traffic.BODY_BYTES} B; workers and service share the processors."
    return Report("", "", [row(side, runs) for side, runs in samples.items()], [verdict], [note])


def side_name(side: str, partitions: int) -> str:
    return f"{side}, of {partitions} partition{'s' if partitions > 1 else ''}"


def time_workers(bench: Bench, server: Process, messages: int, handler: str, *, count: int = 1) -> Pace:
    """Lets a new group of ``count`` workers handle all messages of the queue."""
    return workers.handle_all(server, bench.new_directory("group"), messages, handler=handler, count=count)


def rates(samples: Sequence[Pace]) -> list[float]:
    return [sample.rate for sample in samples]


def row(side: str, samples: Sequence[Pace]) -> Row:
    details = {"its CPU us/message": statistics.median(sample.cpu for sample in samples)}
    if all(sample.server for sample in samples):
        details["server CPU us/message"] = statistics.median(sample.server for sample in samples)
    return Row(side, rates(samples), "messages/s", details)
