"""Compares the SQS facade with ElasticMQ by the same signed requests, and with the native calls."""

from __future__ import annotations

import contextlib
import json
import os
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from bench.baselines import elasticmq
from bench.baselines.elasticmq import BATCH
from bench.harness import Bench, measure
from bench.load import traffic
from bench.load.cycles import Dialect
from bench.load.signing import AccessKey, Signer
from bench.load.traffic import Job, Sample
from bench.measures import claims
from bench.results import FOR_THE_PAGE, Report, Verdict, format_number, format_table, pairwise_ratios
from bench.started import service
from bench.started.processes import Process
from queuey.facades.settings import SqsFacade
from queuey.facades.sqs import access_keys
from queuey.settings import Settings
from queuey.storage import bridge

PREFIX = "/sqs"
SETTINGS = f'[facades.sqs]\nprefix = "{PREFIX}"\n'
QUEUE, SEND_QUEUE = "bench", "sent"
"""The queue that messages are received from, and the queue that messages are sent to."""
UNCHECKED_KEY: AccessKey = {"id": "x", "secret": "x"}
"""The access key for ElasticMQ, which does not check signatures."""

OURS, OURS_TWO, MEMORY, DISK = "queuey", "queuey, 2 processes", "elasticmq", "elasticmq, H2"
NATIVE = "native"
SEND, SEND_MANY = "send 1", f"send {BATCH}"
TAKE, TAKE_MANY = "receive 1, delete it", f"receive {BATCH}, delete them"
GOALS = {SEND: 1.5, SEND_MANY: 1.5, TAKE: 1.0, TAKE_MANY: 1.0}
"""Min rate, as a multiple of ElasticMQ's in memory."""
MAX_CPU_RATIO = 2.0
CONNECTIONS = (2, 16, 64)
NATIVE_CONNECTIONS = 16
"""Number of connections for which the native calls are measured, too."""
WARM_SECONDS = 4.0
"""Duration of each warm-up phase: single messages, then batches."""
NOTES = [
    f"{traffic.BODY_BYTES} B; queuey: SQLite with an fsync before each answer; one process (the default) or two.",
    "AWS JSON; every request is signed, which queuey alone checks.",
    "Receive and delete: both requests, counted as one for each message.",
    "Native: POST of messages, POST of claims and of their acknowledgement, to the same queue and process.",
]


@dataclass(frozen=True)
class Side:
    """One endpoint.

    Attributes:
        path: Path of the endpoint.
        refill: Adds this number of messages to the receive queue.
        is_purged_after_send: Whether sent messages are removed after a run, to be fair to servers that work in memory.
    """

    server: Process
    path: str
    key: AccessKey
    refill: Callable[[int], object]
    is_purged_after_send: bool = False

    def sign_requests(self, action: str, bodies: Sequence[Mapping[str, object]]) -> list[str]:
        signer = Signer(self.key, action, self.path)
        return [signer.request(json.dumps(fields)) for fields in bodies]

    def call(self, action: str, body: Mapping[str, object]) -> None:
        job = Job(self.sign_requests(action, [body]), 200)
        traffic.run(self.server, job, seconds=60, connections=1, warm=0, count=1)


@measure(
    "sqs",
    f"SQS on SQLite with synchronous=FULL, against ElasticMQ {elasticmq.VERSION} in memory and on disk, both warm",
    peers=True,
)
def compare_sqs(bench: Bench) -> Report:
    """All servers run concurrently and are measured in turn, the first one also by native calls."""
    with contextlib.ExitStack() as stack:
        sides = {
            OURS: stack.enter_context(serve_ours(bench, 1)),
            OURS_TWO: stack.enter_context(serve_ours(bench, 2)),
            MEMORY: stack.enter_context(serve_elasticmq(bench)),
            DISK: stack.enter_context(serve_elasticmq(bench, on_disk=True)),
        }
        for side in sides.values():
            warm_up(bench, side)
        taken: dict[tuple[str, int, str], list[Sample]] = {}
        for connections in CONNECTIONS:
            calls = {
                f"{call}, {connections} connections, {name}": (call, connections, name)
                for call in GOALS
                for name in (*sides, *([NATIVE] if connections == NATIVE_CONNECTIONS else []))
            }
            runs = {text: partial(run, bench, sides, *call) for text, call in calls.items()}
            samples = bench.interleave(runs, bench.count(3, 1))
            taken |= {calls[text]: results for text, results in samples.items()}
    rows = [traffic.row(f"{call}, {count} connections, {name}", runs) for (call, count, name), runs in taken.items()]
    page = f"{FOR_THE_PAGE}\n\n{rates_table(taken)}\n\n{cpu_table(taken)}\n\n" + "\n".join(
        f"* {note}" for note in NOTES
    )
    return Report("", "", rows, verdicts(taken), [*NOTES, page])


# The sides


@contextlib.contextmanager
def serve_ours(bench: Bench, workers: int) -> Iterator[Side]:
    directory = bench.new_directory("queuey")
    (directory / "queuey.toml").write_text(SETTINGS)
    environment = {"QUEUEY_CONFIG": str(directory / "queuey.toml")}
    with contextlib.closing(service.prepare(directory, ())) as store:
        deployment = access_keys.deployment_secret(SqsFacade(), Settings(data=directory), os.environ)
        name = access_keys.new_access_key()
        bridge.run(store.applications.add_key(service.APPLICATION, access_keys.digest_of(name)))
        key: AccessKey = {"id": name, "secret": access_keys.secret_of(deployment, name)}
        with service.serve(directory, workers=workers, environment=environment) as server:

            def refill(count: int) -> None:
                queue = bridge.run(store.catalogue.queue(service.APPLICATION, QUEUE))
                service.fill(store, queue, traffic.bodies(1000), count)

            yield create_queues(Side(server, f"{PREFIX}/", key, refill))


@contextlib.contextmanager
def serve_elasticmq(bench: Bench, *, on_disk: bool = False) -> Iterator[Side]:
    with elasticmq.serve(bench.new_directory("elasticmq"), on_disk=on_disk) as server:

        def refill(count: int) -> None:
            texts = traffic.bodies(1000)
            elasticmq.fill(server, [texts[n % len(texts)] for n in range(count)])

        yield create_queues(Side(server, "/", UNCHECKED_KEY, refill, is_purged_after_send=True))


def create_queues(side: Side) -> Side:
    for name in (QUEUE, SEND_QUEUE):
        side.call("CreateQueue", {"QueueName": name})
    return side


def warm_up(bench: Bench, side: Side) -> None:
    seconds = bench.duration(WARM_SECONDS, 0.3)
    for many in (False, True):
        send(side, seconds, 16, many=many)
    for many in (False, True):
        receive_and_delete(side, bench.count(20_000 if many else 4_000, 200), 16, many=many)


# The calls


def run(bench: Bench, sides: Mapping[str, Side], call: str, connections: int, name: str) -> Sample:
    """Makes one kind of call on one side: sends for a time, or takes a number of messages, fewer of few connections."""
    seconds = bench.duration(2, 0.3)
    many = call in {SEND_MANY, TAKE_MANY}
    sends = call in {SEND, SEND_MANY}
    # The round trip limits the rate of few connections.
    count = bench.count(min(connections, 16) * (1000 if many else 200), 200)
    if name == NATIVE:
        side = sides[OURS]
        return (
            native_send(side, seconds, connections, many=many)
            if sends
            else native_receive_and_delete(side, count, connections, many=many)
        )
    side = sides[name]
    return (
        send(side, seconds, connections, many=many)
        if sends
        else receive_and_delete(side, count, connections, many=many)
    )


def send(side: Side, seconds: float, connections: int, *, many: bool) -> Sample:
    if many:
        texts = traffic.bodies(64 * BATCH)
        batches = [texts[at : at + BATCH] for at in range(0, len(texts), BATCH)]
        entries = [[{"Id": str(at), "MessageBody": text} for at, text in enumerate(batch)] for batch in batches]
        requests = side.sign_requests(
            "SendMessageBatch", [{"QueueUrl": url(SEND_QUEUE), "Entries": batch} for batch in entries]
        )
    else:
        bodies = [{"QueueUrl": url(SEND_QUEUE), "MessageBody": text} for text in traffic.bodies(64)]
        requests = side.sign_requests("SendMessage", bodies)
    job = Job(requests, 200, BATCH if many else 1)
    sample = traffic.run(side.server, job, seconds=seconds, connections=connections)
    if side.is_purged_after_send:
        side.call("PurgeQueue", {"QueueUrl": url(SEND_QUEUE)})
    return sample


def native_send(side: Side, seconds: float, connections: int, *, many: bool) -> Sample:
    path = f"{service.BASE}/{SEND_QUEUE}"
    texts = traffic.bodies(64 * BATCH)
    job = traffic.posts_of_many(path, texts, BATCH) if many else traffic.posts_of_one(path, texts[:64])
    return traffic.run(side.server, job, seconds=seconds, connections=connections)


def receive_and_delete(side: Side, count: int, connections: int, *, many: bool) -> Sample:
    side.refill(count + count_spare(connections, many=many))
    limit = BATCH if many else 1
    entry = '{"Id":"%d","ReceiptHandle":"%s"}' if many else '%.0s"%s"'
    before, after = ('"Entries":[', "]}") if many else ('"ReceiptHandle":', "}")
    dialect: Dialect = {
        "claim": side.sign_requests("ReceiveMessage", [{"QueueUrl": url(QUEUE), "MaxNumberOfMessages": limit}])[0],
        "receipt": '"ReceiptHandle": ?"([^"]+)"',
        "settle": "",
        "before": f'{{"QueueUrl":"{url(QUEUE)}",{before}',
        "each": entry,
        "after": after,
        "signed": {
            "key": side.key,
            "action": "DeleteMessageBatch" if many else "DeleteMessage",
            "path": side.path,
        },
    }
    return claims.run_cycles(side.server, dialect, count, connections)


def native_receive_and_delete(side: Side, count: int, connections: int, *, many: bool) -> Sample:
    side.refill(count + count_spare(connections, many=many))
    return claims.run(side.server, count=count, limit=BATCH if many else 1, connections=connections, queue=QUEUE)


def count_spare(connections: int, *, many: bool) -> int:
    """Returns the number of messages that are received after the last counted one, until all connections end."""
    return 2 * connections * (BATCH if many else 1)


def url(queue: str) -> str:
    return f"http://127.0.0.1/000000000000/{queue}"


# What is shown

Samples = Mapping[tuple[str, int, str], Sequence[Sample]]


def ratios(taken: Samples, call: str, connections: int, other: str) -> list[float]:
    return pairwise_ratios(*(traffic.rates(taken[call, connections, name]) for name in (OURS, other)))


def cpu_ratios(taken: Samples, call: str) -> list[float]:
    return pairwise_ratios(*([run.cpu for run in taken[call, NATIVE_CONNECTIONS, name]] for name in (OURS, NATIVE)))


def verdicts(taken: Samples) -> list[Verdict]:
    rate_verdicts = [
        Verdict(
            f"{call}, {connections} connections: {OURS} / {other}",
            ratios(taken, call, connections, other),
            goal=goal if other == MEMORY else None,
        )
        for other in (MEMORY, DISK)
        for call, goal in GOALS.items()
        for connections in CONNECTIONS
    ]
    return rate_verdicts + [
        Verdict(f"{call}: CPU of the facade / native", cpu_ratios(taken, call), goal=MAX_CPU_RATIO, better="lower")
        for call in GOALS
    ]


def rates_table(taken: Samples) -> str:
    sides = (OURS, OURS_TWO, MEMORY, DISK)
    lines = []
    for call, goal in GOALS.items():
        for connections in CONNECTIONS:
            rates = [statistics.median(traffic.rates(taken[call, connections, name])) for name in sides]
            rate_ratios = [statistics.median(ratios(taken, call, connections, other)) for other in (MEMORY, DISK)]
            note = "met" if rate_ratios[0] >= goal else "missed"
            cells = [
                *map(format_number, rates),
                *(f"{format_number(ratio)} x" for ratio in rate_ratios),
                f"≥ {format_number(goal)}, {note}",
            ]
            lines.append([call, str(connections), *cells])
    head = ["messages/s", "connections", *sides, f"/ {MEMORY}", f"/ {DISK}", f"goal, over {MEMORY}"]
    return format_table(head, lines)


def cpu_table(taken: Samples) -> str:
    lines = []
    for call in GOALS:
        costs = [
            statistics.median(run.cpu for run in taken[call, NATIVE_CONNECTIONS, name])
            for name in (OURS, NATIVE, MEMORY)
        ]
        ratio = statistics.median(cpu_ratios(taken, call))
        standing = "met" if ratio <= MAX_CPU_RATIO else "missed"
        cells = [
            *(f"{format_number(cost)} µs" for cost in costs),
            f"{format_number(ratio)} x",
            f"≤ {format_number(MAX_CPU_RATIO)}, {standing}",
        ]
        lines.append([call, *cells])
    head = [
        f"server CPU a message, {NATIVE_CONNECTIONS} connections",
        OURS,
        NATIVE,
        MEMORY,
        f"{OURS} / {NATIVE}",
        "goal",
    ]
    return format_table(head, lines)
