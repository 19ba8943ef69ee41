"""Measures what each operation costs on three nodes with 100,000 queues: the input of :mod:`bench.capacity`."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from bench.harness import Bench, measure
from bench.load import traffic
from bench.load.traffic import Job, Sample
from bench.load.waiting import read_metric
from bench.measures import claims
from bench.measures.cassandra.claims import PARTITIONS, QUEUE
from bench.measures.claims import CLIENTS
from bench.measures.streams import CONNECTION_SETTINGS, IDLE_SECONDS, follow_streams
from bench.results import Report, Row
from bench.started import nodes, on_cassandra, service
from bench.started.nodes import Nodes
from bench.started.processes import Process
from queuey.client import Client
from queuey.messages import QueueSpec
from queuey.storage import Store

NODES = 3
CREATED_TOGETHER = 64
MAX_QUEUES_PER_RUN = 20_000
"""Max queues per run."""
RECEIVED_METRIC = "queuey_messages_received_total"

POST = "post of 1 to a queue of many"
POST_TO_STREAM = "the same, to queues with a live stream"
READ = "read of a queue of many"
CLAIM = "claim of 1 and its acknowledgement"
STREAM_MEMORY = "an idle live stream: memory"
STREAM_SERVICE = "an idle live stream: CPU of the service"
STREAM_NODES = "an idle live stream: CPU of the nodes"
FILES = "files of a message, all copies"


class Usage(NamedTuple):
    """CPU seconds per second of the service and of the nodes, and the memory of the service in MB."""

    service: float
    nodes: float
    memory: float


@measure("cassandra-costs", "What posts, reads, claims and live streams cost on three nodes with 100,000 queues")
def measure_costs(bench: Bench) -> Report:
    """Measures each operation alone, to attribute its CPU. At the end, stops the nodes and sums up their file sizes."""
    names = [f"inbox{number:06}" for number in range(bench.count(100_000, 200))]
    drawn = bench.rng.sample(names, min(len(names), MAX_QUEUES_PER_RUN))
    followed = bench.rng.sample(names, bench.count(5_000, 50))
    rounds = bench.count(5, 1)
    with contextlib.ExitStack() as stack:
        cassandra = stack.enter_context(nodes.cassandra(bench, NODES))
        with contextlib.closing(on_cassandra.prepare(cassandra, queues=())) as store:
            creation_rate = asyncio.run(create_all(store, names))
        bench.print_progress(f"{len(names):,} queues are there")
        server = stack.enter_context(
            on_cassandra.serve(cassandra, bench.new_directory("queuey"), environment=CONNECTION_SETTINGS)
        )
        run = partial(traffic.run, server, seconds=bench.duration(5, 0.5), backend=cassandra)
        calls: dict[str, Callable[[], Sample]] = {
            POST: partial(run, make_posts(drawn)),
            READ: partial(run, traffic.gets([f"{service.BASE}/{name}?limit=100" for name in drawn])),
            CLAIM: partial(fill_and_claim, bench, server, cassandra),
        }
        bench.interleave(calls, bench.count(3, 1))  # Warms up the JVMs.
        samples = bench.interleave(calls, rounds)
        rest = measure_idle_usage(bench, server, cassandra)
        with follow_streams(server, [f"{service.BASE}/{name}?since=now" for name in followed]):
            idle = measure_idle_usage(bench, server, cassandra)
            samples |= bench.interleave({POST_TO_STREAM: partial(run, make_posts(followed))}, rounds)
        stored = read_metric(server, RECEIVED_METRIC)
        for node in cassandra.servers:
            node.stop()
        file_bytes = count_message_bytes(cassandra)
    rows = [Row("creating a queue", [creation_rate], "queues/s")]
    rows += [traffic.row(name, runs, "requests/s") for name, runs in samples.items()]
    rows += [
        Row(STREAM_MEMORY, [(idle.memory - rest.memory) * 1e3 / len(followed)], "KB"),
        Row(STREAM_SERVICE, [(idle.service - rest.service) * 1e6 / len(followed)], "µs/s"),
        Row(STREAM_NODES, [(idle.nodes - rest.nodes) * 1e6 / len(followed)], "µs/s"),
        Row(FILES, [file_bytes / stored], "B"),
    ]
    notes = [
        f"{len(names):,} queues, {NODES} nodes with {NODES} copies, one process of the service, all on two processors.",
        f"Bodies of {traffic.BODY_BYTES} B; 64 connections, {CLIENTS} for claims; {len(followed):,} live streams.",
        f"{stored:,.0f} messages were weighed after the nodes had stopped; nothing was compacted on purpose.",
    ]
    return Report("", "", rows, (), notes)


async def create_all(store: Store, names: Sequence[str]) -> float:
    """Creates the queue for claims and the named queues; returns queues per second."""
    create = store.catalogue.create_queue
    await create(service.APPLICATION, QUEUE, QueueSpec(partitions=PARTITIONS))
    began = time.monotonic()
    for start in range(0, len(names), CREATED_TOGETHER):
        batch = names[start : start + CREATED_TOGETHER]
        await asyncio.gather(*(create(service.APPLICATION, name, QueueSpec()) for name in batch))
    return len(names) / (time.monotonic() - began)


def make_posts(names: Sequence[str]) -> Job:
    """Returns one post to each queue."""
    texts, headers = traffic.bodies(len(names)), {"Content-Type": "text/plain"}
    return Job(
        [
            traffic.request("POST", f"{service.BASE}/{name}", text, headers)
            for name, text in zip(names, texts, strict=True)
        ],
        201,
    )


def fill_and_claim(bench: Bench, server: Process, cassandra: Nodes) -> Sample:
    count, texts = bench.count(4_000, 200), traffic.bodies(1000)
    with Client(f"http://127.0.0.1:{server.port}", key=traffic.KEY, application=service.APPLICATION) as client:
        client.send_many(QUEUE, [texts[number % 1000] for number in range(count + CLIENTS)])
    return claims.run(server, count=count, limit=1, connections=CLIENTS, queue=QUEUE, backend=cassandra, joined=True)


def measure_idle_usage(bench: Bench, server: Process, cassandra: Nodes) -> Usage:
    """Measures without requests, after a wait. The memory is that of the service's largest process."""
    time.sleep(bench.duration(IDLE_SECONDS, 1))  # Waits for the end of background work.
    began, service_before, nodes_before = time.monotonic(), server.cpu_seconds(), cassandra.cpu_seconds()
    time.sleep(bench.duration(3 * IDLE_SECONDS, 1))
    elapsed = time.monotonic() - began
    return Usage(
        (server.cpu_seconds() - service_before) / elapsed,
        (cassandra.cpu_seconds() - nodes_before) / elapsed,
        max(server.memory()),
    )


def count_message_bytes(cassandra: Nodes) -> int:
    """Returns the total size in bytes of the nodes' files of messages and of the index of their buckets."""
    tables = [
        table
        for node in cassandra.servers
        for kind in ("messages_*", "bucket_index-*")
        for table in node.directory.glob(f"data/{on_cassandra.KEYSPACE}/{kind}")
    ]
    return sum(file.stat().st_size for table in tables for file in table.rglob("*") if file.is_file())
