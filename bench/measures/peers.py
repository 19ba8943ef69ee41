"""The service beside another HTTP queue, and beside a database."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from bench.baselines import elasticmq
from bench.harness import Bench, measure
from bench.load import traffic, wrk
from bench.load.traffic import Sample
from bench.measures.over_http import QUEUE, fastest
from bench.results import Report, Verdict, paired
from bench.started import postgres, service
from bench.started.processes import Process

PROTOCOLS = ("query", "json")
WARM_SECONDS = 8.0


class Asked(NamedTuple):
    """Floor and aim for one message a call, and for batches."""

    one: tuple[float, float]
    many: tuple[float, float]


@measure(
    "elasticmq", f"ElasticMQ {elasticmq.VERSION}, in memory and warm, over HTTP; the service with synchronous=FULL"
)
def peer(bench: Bench) -> Report:
    """One message a call, and batches as large as each side is used with: 10 (its limit) against 100."""
    directory = bench.fresh("queuey")
    service.prepare(directory).close()
    with elasticmq.serve(bench.fresh("elasticmq")) as other, service.serve(directory) as ours:
        return beside(bench, other, ours, Asked((0.8, 1.5), (6, 10)))


@measure("postgres", "POST of one message, synchronous=FULL, against inserts by pgbench, one a transaction")
def inserts(bench: Bench) -> Report:
    """Both over TCP and 64 connections; Postgres parses neither HTTP nor keys, and its statement is prepared."""
    directory = bench.fresh("queuey")
    service.prepare(directory).close()
    post = traffic.posts_of_one(QUEUE, traffic.bodies(64))
    seconds = bench.pick(5, 1)
    with postgres.serve(bench.fresh("postgres")) as other, service.serve(directory) as ours:
        calls: dict[str, Callable[[], Sample]] = {
            "queuey": partial(wrk.ASK, ours, post, seconds=seconds, connections=postgres.CONNECTIONS),
            "postgres": partial(other.inserts, seconds),
        }
        bench.interleave(calls, 1)
        samples = bench.interleave(calls, bench.size(9, 1))
    ratios = paired(*(traffic.rates(samples[name]) for name in calls))
    rows = [traffic.row(name, runs) for name, runs in samples.items()]
    return Report("", "", rows, [Verdict("queuey / postgres", ratios, goal=1.1, aim=1.3)])


def beside(bench: Bench, other: Process, ours: Process, asked: Asked) -> Report:
    """Compares a service that is up and warm with ElasticMQ."""
    texts = traffic.bodies(1600)
    warm(other, bench.pick(WARM_SECONDS, 0.3), texts)
    traffic.run(ours, traffic.posts_of_one(QUEUE, texts[:64]), seconds=1)
    seconds, rounds = bench.pick(2, 0.3), bench.size(5, 1)
    one = bench.interleave(ones(ours, other, texts[:64], seconds), rounds)
    many = {
        connections: bench.interleave(batches(ours, other, texts, seconds, connections), rounds)
        for connections in (4, 64)
    }
    memory = sum(other.memory()), sum(ours.memory())
    rows = [traffic.row(name, runs) for name, runs in one.items()]
    verdicts = versus("one message", one, *asked.one)
    for connections, samples in many.items():
        rows += [traffic.row(f"{name}, {connections} connections", runs) for name, runs in samples.items()]
        verdicts += versus(f"batches, {connections} connections", samples, *asked.many)
    note = f"One message: 64 connections. Memory in the end: ElasticMQ {memory[0]:,.0f} MB, queuey {memory[1]:,.0f} MB."
    return Report("", "", rows, verdicts, [note])


def versus(what: str, samples: dict[str, list[Sample]], goal: float, aim: float) -> list[Verdict]:
    """Compares with the faster of the other side's protocols."""
    best = fastest({name: runs for name, runs in samples.items() if name.startswith("elasticmq")})
    ours = next(name for name in samples if name.startswith("queuey"))
    ratios = paired(traffic.rates(samples[ours]), traffic.rates(samples[best]))
    return [Verdict(f"{what}: queuey / {best}", ratios, goal=goal, aim=aim)]


def warm(server: Process, seconds: float, texts: list[str]) -> None:
    """Sends until the JVM has compiled what it runs often, in both protocols and both sizes."""
    for protocol in PROTOCOLS:
        one = elasticmq.sends(texts[:64], protocol)
        many = elasticmq.batch_sends(texts, protocol)
        traffic.run(server, one, seconds=seconds / 2)
        traffic.run(server, many, seconds=seconds / 4)
        elasticmq.purge(server)


def emptied(server: Process, call: Callable[[], Sample]) -> Sample:
    """Runs against a queue that is empty at first, in ElasticMQ's favour: its messages lie in memory."""
    elasticmq.purge(server)
    return call()


def ones(ours: Process, other: Process, texts: list[str], seconds: float) -> dict[str, Callable[[], Sample]]:
    """Returns the sides that send one message a call over 64 connections."""
    run = partial(traffic.run, seconds=seconds)
    calls: dict[str, Callable[[], Sample]] = {"queuey": partial(run, ours, traffic.posts_of_one(QUEUE, texts))}
    for protocol in PROTOCOLS:
        call = partial(run, other, elasticmq.sends(texts, protocol))
        calls[f"elasticmq, {protocol}"] = partial(emptied, other, call)
    return calls


def batches(
    ours: Process, other: Process, texts: list[str], seconds: float, connections: int
) -> dict[str, Callable[[], Sample]]:
    """Returns the sides that send batches."""
    run = partial(traffic.run, seconds=seconds, connections=connections)
    calls: dict[str, Callable[[], Sample]] = {
        "queuey, 100": partial(run, ours, traffic.posts_of_many(QUEUE, texts, 100))
    }
    for protocol in PROTOCOLS:
        call = partial(run, other, elasticmq.batch_sends(texts, protocol))
        calls[f"elasticmq, {protocol}, {elasticmq.BATCH}"] = partial(emptied, other, call)
    return calls
