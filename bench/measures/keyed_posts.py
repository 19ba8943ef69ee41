"""Measures posts with an idempotency key, and puts by name, against the same posts without."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from functools import partial

from bench.harness import Bench, measure
from bench.load import traffic
from bench.load.generator import COUNTER
from bench.load.traffic import Job, Sample
from bench.measures.over_http import BATCH, CONNECTIONS, QUEUE
from bench.results import Report, Verdict, pairwise_ratios
from bench.started import processes, service

CALLERS = 4
"""Connections that put by name: half of a worker's threads, the number that may wait."""


@measure("keyed", "POST with an Idempotency-Key, against POST without")
def measure_keyed_posts(bench: Bench) -> Report:
    ours = bench.new_directory("queuey")
    service.prepare(ours).close()
    with service.serve(ours) as server:
        return compare_keys(bench, server)


@measure("named", "PUT by name, of new names and of 100 that have values, against POST")
def measure_named_puts(bench: Bench) -> Report:
    """Runs on SQLite with an fsync before each answer. Replacing a value costs two more transactions."""
    ours = bench.new_directory("queuey")
    service.prepare(ours).close()
    with service.serve(ours) as server:
        return compare_names(bench, server)


def compare_names(bench: Bench, server: processes.Process) -> Report:
    texts, seconds = traffic.bodies(BATCH), bench.duration(2.5, 0.3)

    def sending(job: Callable[[], Job]) -> Callable[[], Sample]:
        return lambda: traffic.run(server, job(), seconds=seconds, connections=CALLERS)

    calls = {
        "POST": sending(lambda: traffic.posts_of_one(QUEUE, texts)),
        "PUT, new names": sending(lambda: make_named_puts(texts, secrets.token_hex(12), 10_000_000)),
        "PUT, 100 names": sending(lambda: make_named_puts(texts, "again", 100)),
    }
    samples = bench.interleave(calls, bench.count(5, 1))
    post = traffic.rates(samples["POST"])
    verdicts = [
        Verdict(f"{name} / POST", pairwise_ratios(traffic.rates(runs), post))
        for name, runs in samples.items()
        if name != "POST"
    ]
    notes = [f"{CALLERS} connections, {traffic.BODY_BYTES} B bodies, 1 worker with {service.THREADS} threads."]
    return Report("", "", [traffic.row(name, runs) for name, runs in samples.items()], verdicts, notes)


def make_named_puts(texts: Sequence[str], prefix: str, number: int) -> Job:
    """Returns puts whose names are the prefix and the request's number modulo ``number``."""
    path = f"{QUEUE}/named/{prefix}-{COUNTER.decode()}"
    puts = [traffic.request("PUT", path, text, {"Content-Type": "text/plain"}) for text in texts]
    return Job(puts, 200, numbered=number)


def compare_keys(bench: Bench, server: processes.Process) -> Report:
    texts = traffic.bodies(BATCH)
    plain = {
        "1 message": traffic.posts_of_one(QUEUE, texts),
        "100 messages": traffic.posts_of_many(QUEUE, texts, BATCH),
    }
    calls: dict[str, Callable[[], Sample]] = {}
    for what, job in plain.items():
        calls[f"{what}, no key"] = partial(send, bench, server, job)
        calls[f"{what}, a key"] = lambda job=job: send(bench, server, with_keys(job))  # type: ignore[misc]
    samples = bench.interleave(calls, bench.count(5, 1))
    verdicts = []
    for what in plain:
        rates = [traffic.rates(samples[f"{what}, {which}"]) for which in ("a key", "no key")]
        verdicts.append(Verdict(f"{what}: a key / no key", pairwise_ratios(*rates), goal=0.5, aim=0.8))
    rows = [traffic.row(name, runs) for name, runs in samples.items()]
    notes = [f"{CONNECTIONS} connections, {traffic.BODY_BYTES} B bodies, 1 worker; keys ascend, as the client's do."]
    return Report("", "", rows, verdicts, notes)


def send(bench: Bench, server: processes.Process, job: Job) -> Sample:
    return traffic.run(server, job, seconds=bench.duration(2.5, 0.3), connections=CONNECTIONS)


def with_keys(job: Job) -> Job:
    """Returns the job with idempotency keys that no other run uses."""
    header = f"\r\nIdempotency-Key: {secrets.token_hex(12)}-{COUNTER.decode()}\r\n"
    requests = [request.replace("\r\n", header, 1) for request in job.requests]
    return Job(requests, job.status, job.messages, numbered=10_000_000)
