"""Measures the max rate of a worker, alone and beside the worker of another checkout."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from bench.harness import Bench, measure
from bench.load import traffic
from bench.measures.before import NAMES, find_both_checkouts
from bench.results import Report, Row, Verdict, pairwise_ratios
from bench.started import service, workers
from bench.started.processes import ROOT, Process
from bench.started.workers import QUEUE, Pace
from queuey.model.messages import NewMessage, QueueSpec
from queuey.storage import bridge

PARTITIONS = (1, 8)


@measure("qdo-worker", "One worker with empty plain and async handlers, from one partition and from eight")
def measure_one_worker(bench: Bench) -> Report:
    count = bench.count(1_000_000, 40_000)
    with contextlib.ExitStack() as stack:
        calls: dict[str, Callable[[], Pace]] = {}
        for partitions in PARTITIONS:
            server = stack.enter_context(serve_filled(bench, partitions, count))
            for handler in workers.HANDLERS:
                side = side_name(f"worker, {handler}", partitions)
                calls[side] = partial(time_worker, bench, server, count, handler)
        samples = bench.interleave(calls, bench.count(5, 1))
    shares = f"Measured from {workers.WARM_SHARE:.0%} to {workers.END_SHARE:.0%} of them."
    notes = [
        f"{count:,} messages of {traffic.BODY_BYTES} B, handled by their own count.",
        f"{shares} The service's groups, default settings.",
    ]
    return Report("", "", [row(side, runs) for side, runs in samples.items()], notes=notes)


@measure("qdo-before", "A worker of this tree over one of another tree, whose path is in BENCH_BEFORE")
def compare_workers_of_checkouts(bench: Bench) -> Report:
    """Both handle the same messages, in turn, from one service of this checkout."""
    count = bench.count(300_000, 40_000)
    calls: dict[str, Callable[[], Pace]] = {}
    sides = [(partitions, handler) for partitions in PARTITIONS for handler in workers.HANDLERS]
    with contextlib.ExitStack() as stack:
        servers = {partitions: stack.enter_context(serve_filled(bench, partitions, count)) for partitions in PARTITIONS}
        for partitions, handler in sides:
            for which, tree in find_both_checkouts().items():
                side = f"{side_name(handler, partitions)}, {which}"
                calls[side] = partial(time_worker, bench, servers[partitions], count, handler, tree)
        samples = bench.interleave(calls, bench.count(7, 1))
    verdicts = []
    for partitions, handler in sides:
        side = side_name(handler, partitions)
        now, earlier = (samples[f"{side}, {which}"] for which in NAMES)
        ratio = pairwise_ratios([pace.rate for pace in now], [pace.rate for pace in earlier])
        verdicts.append(Verdict(f"{side}: rate now / before", ratio, goal=0.9))
        spent = pairwise_ratios([pace.cpu for pace in now], [pace.cpu for pace in earlier])
        verdicts.append(Verdict(f"{side}: CPU now / before", spent, better="lower"))
    return Report("", "", [row(side, runs) for side, runs in samples.items()], verdicts)


@contextlib.contextmanager
def serve_filled(bench: Bench, partitions: int, count: int) -> Iterator[Process]:
    """Serves a queue whose partitions have in turn got a thousand messages each, whole thousands up to ``count``."""
    directory = bench.new_directory(f"queuey-{partitions}")
    texts = traffic.bodies(1000)
    with contextlib.closing(service.prepare(directory, ())) as store:
        spec = QueueSpec(partitions=partitions)
        queue, _ = bridge.run(store.catalogue.create_queue(service.APPLICATION, QUEUE, spec))
        for number in range(count // 1000):
            batch = [NewMessage(text, number % partitions + 1, service.THREE_DAYS) for text in texts]
            bridge.run(store.messages.append(queue, batch))
    with service.serve(directory) as server:
        bench.print_progress(f"{count:,} messages in {partitions} partition(s)")
        yield server


def side_name(side: str, partitions: int) -> str:
    return f"{side}, of {partitions} partition{'s' if partitions > 1 else ''}"


def time_worker(bench: Bench, server: Process, messages: int, handler: str, tree: Path = ROOT) -> Pace:
    """Lets a new group of one worker handle all messages of the queue."""
    return workers.handle_all(server, bench.new_directory("group"), messages, handler=handler, tree=tree)


def row(side: str, samples: Sequence[Pace]) -> Row:
    details = {"its CPU us/message": statistics.median(sample.cpu for sample in samples)}
    if all(sample.server for sample in samples):
        details["server CPU us/message"] = statistics.median(sample.server for sample in samples)
    return Row(side, [sample.rate for sample in samples], "messages/s", details)
