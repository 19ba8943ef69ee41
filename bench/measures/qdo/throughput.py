"""Workers that handle messages as fast as they can, against loops without a worker around them."""

from __future__ import annotations

import contextlib
import json
import statistics
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from bench.baselines import batch_reads, three_calls
from bench.harness import Bench, measure
from bench.load import traffic
from bench.results import Report, Row, Verdict, paired
from bench.started import nodes, on_cassandra, service, workers
from bench.started.processes import Process, output
from bench.started.workers import QUEUE, Pace
from queuey.messages import NewMessage, QueueSpec
from queuey.storage import Store

PARTITIONS = (1, 8)
WORKERS = (1, 4)


def fill(store: Store, partitions: int, count: int) -> None:
    """Makes the queue and stores so many messages, a thousand in each partition in turn."""
    queue = store.create_queue(service.APPLICATION, QUEUE, QueueSpec(partitions=partitions))[0]
    texts = traffic.bodies(1000)
    for number in range(count // 1000):
        store.append(queue, [NewMessage(text, number % partitions + 1, service.THREE_DAYS) for text in texts])


@contextlib.contextmanager
def filled(bench: Bench, partitions: int, count: int, sync: str = "full") -> Iterator[Process]:
    """Serves a queue with messages on SQLite."""
    directory = bench.fresh(f"queuey-{partitions}")
    store = service.prepare(directory, (three_calls.STATUS,))
    fill(store, partitions, count)
    store.close()
    with service.serve(directory, sync=sync) as server:
        bench.say(f"{count:,} messages in {partitions} partition(s)")
        yield server


@measure("qdo-worker", "One worker with an empty handler, against a bare loop over the client's batch reads")
def one_worker(bench: Bench) -> Report:
    """The faster of the two clients counts; both sides read everything from the beginning in each run."""
    count = bench.size(1_000_000, 40_000)
    with contextlib.ExitStack() as stack:
        calls: dict[str, Callable[[], Pace]] = {}
        for partitions in PARTITIONS:
            server = stack.enter_context(filled(bench, partitions, count))
            for variant in batch_reads.VARIANTS:
                calls[name(f"loop, {variant}", partitions)] = partial(bare, server, variant, count)
            for handler in workers.HANDLERS:
                calls[name(f"worker, {handler}", partitions)] = partial(at_work, bench, server, count, handler)
        samples = bench.interleave(calls, bench.size(5, 1))
    verdicts = []
    for partitions in PARTITIONS:
        loops = {side: samples[side] for side in (name(f"loop, {v}", partitions) for v in batch_reads.VARIANTS)}
        best = max(loops, key=lambda side: statistics.median(rates(loops[side])))
        for handler in workers.HANDLERS:
            ours = name(f"worker, {handler}", partitions)
            ratios = paired(rates(samples[ours]), rates(samples[best]))
            verdicts.append(Verdict(f"{ours} / {best.partition(', of')[0]}", ratios, goal=0.8, aim=0.95))
    notes = [
        f"{count:,} messages of {traffic.BODY_BYTES} B, handled by their own count; pages of {batch_reads.PAGE}.",
        f"Measured from {workers.WARM:.0%} on; a worker up to {workers.END:.0%}. Local coordination, default settings.",
    ]
    return Report("", "", [row(side, runs) for side, runs in samples.items()], verdicts, notes)


@measure(
    "qdo-original", "One worker with an empty handler, against a loop that makes the original's three calls a message"
)
def against_original(bench: Bench) -> Report:
    """One partition; the loop has one connection and waits for every answer, as the original did."""
    count = bench.size(1_000_000, 40_000)
    seconds = bench.pick(5, 0.5)
    with filled(bench, 1, count, sync="normal") as server:
        calls: dict[str, Callable[[], Pace]] = {"three calls a message": partial(three, server, seconds)}
        for handler in workers.HANDLERS:
            calls[f"worker, {handler}"] = partial(at_work, bench, server, count, handler)
        samples = bench.interleave(calls, bench.size(5, 1))
    under = rates(samples["three calls a message"])
    verdicts = [
        Verdict(f"worker, {h} / three calls", paired(rates(samples[f"worker, {h}"]), under), goal=10, aim=50)
        for h in workers.HANDLERS
    ]
    note = (
        "In the loop's favour: the standard library's HTTP client, and sync=normal, so that no PUT waits for the disk."
    )
    return Report("", "", [row(side, runs) for side, runs in samples.items()], verdicts, [note])


@measure("qdo-four", "Four workers against one, eight partitions, on SQLite")
def four(bench: Bench) -> Report:
    """All on one machine, with the service."""
    count = bench.size(1_000_000, 48_000)
    with filled(bench, 8, count) as server:
        return several(bench, server, count)


@measure("qdo-four-cassandra", "Four workers against one, eight partitions, on Cassandra")
def four_on_cassandra(bench: Bench) -> Report:
    """One node, on the same processors."""
    count = bench.size(320_000, 24_000)
    with nodes.cassandra(bench) as cassandra:
        store = on_cassandra.prepare(cassandra, queues=())
        fill(store, 8, count)
        on_cassandra.let_appear(store, store.queue(service.APPLICATION, QUEUE))
        store.close()
        with on_cassandra.serve(cassandra, bench.fresh("queuey")) as server:
            bench.say(f"{count:,} messages in 8 partitions")
            at_work(bench, server, count, "plain")
            return several(bench, server, count)


def several(bench: Bench, server: Process, messages: int) -> Report:
    """Compares groups of different sizes."""
    calls = {f"{count} worker(s)": partial(at_work, bench, server, messages, "plain", count=count) for count in WORKERS}
    samples = bench.interleave(calls, bench.size(5, 1))
    one, more = (rates(samples[side]) for side in calls)
    verdict = Verdict(f"{WORKERS[1]} workers / {WORKERS[0]} worker", paired(more, one))
    note = f"{messages:,} messages of {traffic.BODY_BYTES} B; workers and service share the processors."
    return Report("", "", [row(side, runs) for side, runs in samples.items()], [verdict], [note])


def name(side: str, partitions: int) -> str:
    """Returns the name of a side."""
    return f"{side}, of {partitions} partition{'s' if partitions > 1 else ''}"


def at_work(bench: Bench, server: Process, messages: int, handler: str, *, count: int = 1) -> Pace:
    """Runs workers of a new group."""
    return workers.handle(server, bench.fresh("group"), messages, handler=handler, count=count)


def bare(server: Process, variant: str, messages: int) -> Pace:
    """Runs the loop over batch reads in a process of its own."""
    url = f"http://127.0.0.1:{server.port}/v1/{service.APPLICATION}"
    arguments = [variant, url, QUEUE, str(messages), str(int(messages * workers.WARM))]
    return baseline(server, batch_reads.__name__, arguments, messages)


def three(server: Process, seconds: float) -> Pace:
    """Runs the loop of three calls in a process of its own."""
    return baseline(server, three_calls.__name__, [str(server.port), QUEUE, str(seconds), str(seconds / 4)], None)


def baseline(server: Process, module: str, arguments: Sequence[str], messages: int | None) -> Pace:
    """Runs a baseline, which prints its rate and its CPU.

    Args:
        server: The service.
        module: Its name.
        arguments: What it is told.
        messages: How many it reads in all; None: as many as it can.

    Raises:
        Void: It failed.
    """
    before = server.cpu_seconds()
    rate, cpu = json.loads(output(module, *arguments, seconds=600))
    served = (server.cpu_seconds() - before) * 1e6
    return Pace(rate, cpu, served / messages if messages else 0.0)


def rates(samples: Sequence[Pace]) -> list[float]:
    """Returns the messages a second of each run."""
    return [sample.rate for sample in samples]


def row(side: str, samples: Sequence[Pace]) -> Row:
    """Sums up the runs of one side."""
    details = {"its CPU us/message": statistics.median(sample.cpu for sample in samples)}
    if all(sample.server for sample in samples):
        details["server CPU us/message"] = statistics.median(sample.server for sample in samples)
    return Row(side, rates(samples), "messages/s", details)
