"""Compares the service with other queues, logs and databases."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench.harness import Bench, Skip, measure
from bench.load import generator as load
from bench.load import traffic, wrk
from bench.load.traffic import Job, Sample
from bench.measures import claims
from bench.measures.over_http import BATCH, CONNECTIONS, QUEUE
from bench.results import Report, Verdict, pairwise_ratios
from bench.started import brokers, load_in_go, postgres, redis, service
from bench.started.load_in_go import Peer
from bench.started.processes import Process
from queuey.storage import bridge
from queuey.storage.sqlite import SqliteStore

READ = "read"
FILLED_MESSAGES, JOBS_PER_RUN = 50_000, 4_000
"""Number of messages to read, and of jobs in one run."""
RUN_SECONDS = 3.0


@measure(
    "peers", "Messages and jobs beside other logs and queues, each with its messages on the disk first", peers=True
)
def compare_other_systems(bench: Bench) -> Report:
    """Runs all servers concurrently and measures them in turn. A system not installed is skipped with a note."""
    notes, peers = list(NOTES), {}
    with contextlib.ExitStack() as stack:
        ours = stack.enter_context(Ours.serve(bench))
        for name, start in OTHERS.items():
            try:
                peers[name] = start(bench, stack)
            except Skip as reason:
                notes.append(f"SKIPPED {name}: {reason}")
        samples = {
            what: bench.interleave(
                {OURS: partial(work.ours, bench, ours)}
                | {name: partial(work.theirs, bench, peer) for name, peer in peers.items() if name not in work.without},
                bench.count(5, 1),
            )
            for what, work in WORK.items()
        }
    rows = [traffic.row(f"{what}: {name}", runs) for what, sides in samples.items() for name, runs in sides.items()]
    return Report("", "", rows, verdicts(samples), notes)


@measure("peers-many", "POST of one message to any of 100,000 queues, beside Postgres", peers=True)
def compare_many_queues(bench: Bench) -> Report:
    """Each queue has a message before the first run. Postgres' table has its rows in an index by queue and id."""
    queues, seconds = bench.count(100_000, 1_000), bench.duration(RUN_SECONDS, 0.3)
    directory = bench.new_directory("queuey")
    service.prepare(directory).close()
    service.fill_queues(directory, queues)
    path = f"{service.BASE}/q{load.COUNTER.decode()}"
    post = traffic.request("POST", path, traffic.bodies(1)[0], {"Content-Type": "text/plain"})
    with contextlib.ExitStack() as stack:
        peer = start_postgres(bench, stack)
        server = stack.enter_context(service.serve(directory))
        traffic.run(server, Job([post], 201, order=range(queues)), seconds=600, warm=0, count=queues)
        peer.load("post", callers=CONNECTIONS, seconds=600, count=queues, queues=queues)
        bench.print_progress("every queue has a message")
        order = [bench.rng.randrange(queues) for _ in range(2 * queues)]
        samples = bench.interleave(
            {
                OURS: partial(traffic.run, server, Job([post], 201, order=order), seconds=seconds),
                POSTGRES: partial(peer.load, "post", callers=CONNECTIONS, seconds=seconds, queues=queues),
            },
            bench.count(5, 1),
        )
    ratio = pairwise_ratios(*(traffic.rates(samples[name]) for name in (OURS, POSTGRES)))
    rows = [traffic.row(name, runs) for name, runs in samples.items()]
    return Report("", "", rows, [Verdict("queuey / Postgres", ratio, goal=1.3)], NOTES[:1])


class Ours:
    """The service under load; the constructor fills the queue that is read."""

    def __init__(self, server: Process, store: SqliteStore, texts: list[str]) -> None:
        self._server = server
        self._store = store
        self._texts = texts
        self._queue = bridge.run(store.catalogue.queue(service.APPLICATION, claims.QUEUE))
        read_queue = bridge.run(store.catalogue.queue(service.APPLICATION, READ))
        service.fill(store, read_queue, texts, FILLED_MESSAGES)
        places = service.page_starts(store, read_queue, BATCH)
        self._reads = traffic.gets(
            [f"{service.BASE}/{READ}?limit={BATCH}&since={place}" for place in places[:-1]], BATCH
        )

    @classmethod
    @contextlib.contextmanager
    def serve(cls, bench: Bench) -> Iterator[Ours]:
        directory = bench.new_directory("queuey")
        with (
            contextlib.closing(service.prepare(directory, (claims.QUEUE, READ))) as store,
            service.serve(directory) as server,
        ):
            yield cls(server, store, traffic.bodies(1600))

    def post(self, callers: int, batch: int, seconds: float) -> Sample:
        texts = self._texts
        job = traffic.posts_of_one(QUEUE, texts[:64]) if batch == 1 else traffic.posts_of_many(QUEUE, texts, batch)
        return wrk.LIGHTEST_GENERATOR(self._server, job, seconds=seconds, connections=callers)

    def read(self, callers: int, seconds: float) -> Sample:
        return wrk.LIGHTEST_GENERATOR(self._server, self._reads, seconds=seconds, connections=callers)

    def work_jobs(self, callers: int, count: int) -> Sample:
        service.fill(self._store, self._queue, self._texts, count + callers)
        time.sleep(claims.REST_SECONDS)
        return claims.run(self._server, count=count, limit=1, connections=callers, joined=True)


@dataclass(frozen=True)
class Work:
    """One kind of work, for the service and for the other systems.

    Attributes:
        goals: Required ratio to each system.
        without: Systems that have no such operation.
    """

    ours: Callable[[Bench, Ours], Sample]
    theirs: Callable[[Bench, Peer], Sample]
    goals: Mapping[str, float]
    without: Collection[str] = ()


def make_posts(callers: int, batch: int, goals: Mapping[str, float]) -> Work:
    def run_ours(bench: Bench, ours: Ours) -> Sample:
        return ours.post(callers, batch, bench.duration(RUN_SECONDS, 1))

    def run_theirs(bench: Bench, peer: Peer) -> Sample:
        return peer.load("post", callers=callers, batch=batch, seconds=bench.duration(RUN_SECONDS, 1))

    return Work(run_ours, run_theirs, goals)


def make_reads(callers: int) -> Work:
    def run_theirs(bench: Bench, peer: Peer) -> Sample:
        peer.load("post", callers=4, batch=BATCH, seconds=60, count=bench.count(FILLED_MESSAGES, 2_000))
        return peer.load("read", callers=callers, seconds=bench.duration(RUN_SECONDS, 1))

    return Work(lambda bench, ours: ours.read(callers, bench.duration(RUN_SECONDS, 1)), run_theirs, {}, {RABBITMQ})


def make_jobs(callers: int) -> Work:
    def run_theirs(bench: Bench, peer: Peer) -> Sample:
        count = bench.count(JOBS_PER_RUN, 500)
        peer.load("post", callers=4, batch=BATCH, seconds=60, count=count + BATCH * callers)
        return peer.load("job", callers=callers, seconds=60, count=count)

    return Work(
        lambda bench, ours: ours.work_jobs(callers, bench.count(JOBS_PER_RUN, 500)),
        run_theirs,
        {POSTGRES: 3.0},
        {KAFKA},
    )


def verdicts(samples: Mapping[str, Mapping[str, Sequence[Sample]]]) -> list[Verdict]:
    return [
        Verdict(
            f"{what}: queuey / {name}",
            pairwise_ratios(traffic.rates(sides[OURS]), traffic.rates(runs)),
            goal=goals.get(name),
        )
        for what, sides in samples.items()
        for goals in [WORK[what].goals]
        for name, runs in sides.items()
        if name != OURS
    ]


# The others


def start_postgres(bench: Bench, stack: contextlib.ExitStack) -> Peer:
    program = load_in_go.program()
    return Peer(program, "postgres", stack.enter_context(postgres.serve(bench.new_directory("postgres"))))


def make_start(
    kind: str, serve: Callable[[Path], contextlib.AbstractContextManager[tuple[str, Process]]]
) -> Callable[[Bench, contextlib.ExitStack], Peer]:
    def start(bench: Bench, stack: contextlib.ExitStack) -> Peer:
        program = load_in_go.program()
        return Peer(program, kind, *stack.enter_context(serve(bench.new_directory(kind))))

    return start


OURS, POSTGRES, REDIS, NATS, RABBITMQ, KAFKA = "queuey", "Postgres", "Redis", "NATS", "RabbitMQ", "Kafka"
OTHERS: Mapping[str, Callable[[Bench, contextlib.ExitStack], Peer]] = {
    POSTGRES: start_postgres,
    REDIS: make_start("redis", redis.serve),
    NATS: make_start("nats", brokers.nats),
    RABBITMQ: make_start("rabbitmq", brokers.rabbitmq),
    KAFKA: make_start("kafka", brokers.kafka),
}
SINGLE_POST_GOALS = {POSTGRES: 1.4, REDIS: 0.4, NATS: 1.0, RABBITMQ: 1.0, KAFKA: 1.0}
WORK: Mapping[str, Work] = {
    "post of 1, 1 caller": make_posts(1, 1, {}),
    "post of 1, 64 callers": make_posts(64, 1, SINGLE_POST_GOALS),
    "post of 100, 16 callers": make_posts(16, BATCH, {POSTGRES: 1.2}),
    "read of 100, 4 callers": make_reads(4),
    "job, 32 callers": make_jobs(claims.CLIENTS),
}
NOTES = [
    f"{traffic.BODY_BYTES} B bodies; messages a second. Every message is on the disk (fsync) before its call ends.",
    "queuey: synchronous=FULL, over HTTP, asked by wrk where it is installed; jobs by a program in Python.",
    "The others are asked by their usual clients in Go, one connection a caller; Kafka by one client for all callers.",
    "Postgres: a batch is one statement; a job is SELECT … FOR UPDATE SKIP LOCKED and DELETE in one transaction.",
    "Redis: streams, appendfsync always; a batch is a pipeline; a job is XREADGROUP and XACK.",
    "NATS: JetStream, sync_interval always; a job is a pull of one message and an acknowledgement that is confirmed.",
    "RabbitMQ: quorum queue, publisher confirms; a job is a delivery, prefetch 1, and an unconfirmed acknowledgement.",
    f"Kafka {brokers.KAFKA_VERSION}: flush.messages=1, 4 partitions, no linger; its client reads ahead.",
]
