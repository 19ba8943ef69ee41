"""Posts with an idempotency key, against the same posts without."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from functools import partial

from tests.bench.harness import Bench, measure
from tests.bench.load import traffic
from tests.bench.load.generator import COUNTER
from tests.bench.load.traffic import Job, Sample
from tests.bench.measures.over_http import BATCH, CONNECTIONS, QUEUE
from tests.bench.results import Report, Verdict, paired
from tests.bench.started import nodes, on_cassandra, processes, service
from tests.bench.started.nodes import Nodes

WARM_SECONDS = 3.0


@measure("keyed", "POST with an Idempotency-Key, against POST without")
def keyed(bench: Bench) -> Report:
    """Of one message and of 100, on SQLite with an fsync before each answer."""
    ours = bench.fresh("queuey")
    service.prepare(ours).close()
    with service.serve(ours) as server:
        return compared(bench, server, goal=0.5, aim=0.8)


@measure("cassandra-keyed", "POST with an Idempotency-Key on Cassandra, against POST without")
def keyed_on_cassandra(bench: Bench) -> Report:
    """A key costs two lightweight transactions, whatever the number of messages."""
    with nodes.cassandra(bench) as cassandra:
        on_cassandra.prepare(cassandra).close()
        with on_cassandra.serve(cassandra, bench.fresh("queuey")) as server:
            return compared(bench, server, behind=cassandra)


def compared(
    bench: Bench,
    server: processes.Process,
    *,
    behind: Nodes | None = None,
    goal: float | None = None,
    aim: float | None = None,
) -> Report:
    """Measures both ways at one service."""
    texts = traffic.bodies(BATCH)
    plain = {
        "1 message": traffic.posts_of_one(QUEUE, texts),
        "100 messages": traffic.posts_of_many(QUEUE, texts, BATCH),
    }
    calls: dict[str, Callable[[], Sample]] = {}
    for what, job in plain.items():
        calls[f"{what}, no key"] = partial(sent, bench, server, job, behind, key=False)
        calls[f"{what}, a key"] = partial(sent, bench, server, job, behind, key=True)
    if behind is not None:
        for job in plain.values():
            traffic.run(server, with_keys(job), seconds=bench.pick(WARM_SECONDS, 1), connections=CONNECTIONS)
    samples = bench.interleave(calls, bench.size(5, 2))
    verdicts = []
    for what in plain:
        rates = [traffic.rates(samples[f"{what}, {which}"]) for which in ("a key", "no key")]
        verdicts.append(Verdict(f"{what}: a key / no key", paired(*rates), goal=goal, aim=aim))
    rows = [traffic.row(name, runs) for name, runs in samples.items()]
    notes = [f"{CONNECTIONS} connections, {traffic.BODY_BYTES} B bodies, 1 worker; keys ascend, as the client's do."]
    return Report("", "", rows, verdicts, notes)


def sent(bench: Bench, server: processes.Process, job: Job, behind: Nodes | None, *, key: bool) -> Sample:
    """Sends posts for some seconds."""
    chosen = with_keys(job) if key else job
    return traffic.run(server, chosen, seconds=bench.pick(2.5, 0.8), connections=CONNECTIONS, backend=behind)


def with_keys(job: Job) -> Job:
    """Returns a job whose requests have keys that no other run has."""
    header = f"\r\nIdempotency-Key: {secrets.token_hex(12)}-{COUNTER.decode()}\r\n"
    requests = [request.replace("\r\n", header, 1) for request in job.requests]
    return Job(requests, job.status, job.messages, numbered=10_000_000)
