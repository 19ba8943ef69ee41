"""Compares the SQS facade with ElasticMQ by the same signed requests, and with the native calls."""

from __future__ import annotations

import contextlib
import json
import os
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
from bench.results import Report, Verdict, pairwise_ratios
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

OURS, MEMORY, NATIVE = "queuey", "elasticmq", "native"
SEND, SEND_MANY = "send 1", f"send {BATCH}"
TAKE, TAKE_MANY = "receive 1, delete it", f"receive {BATCH}, delete them"
GOALS = {SEND: 1.5, SEND_MANY: 1.5, TAKE: 1.0, TAKE_MANY: 1.0}
"""Min rate, as a multiple of ElasticMQ's in memory."""
MAX_CPU_RATIO = 2.0
CONNECTIONS = 16
WARM_SECONDS = 4.0
"""Duration of each warm-up phase: single messages, then batches."""
NOTES = [
    f"{traffic.BODY_BYTES} B; queuey: SQLite with an fsync before each answer; one process.",
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
    f"SQS on SQLite with synchronous=FULL, against ElasticMQ {elasticmq.VERSION} in memory, both warm",
    peers=True,
)
def compare_sqs(bench: Bench) -> Report:
    """All servers run concurrently and are measured in turn, the first one also by native calls."""
    with contextlib.ExitStack() as stack:
        sides = {OURS: stack.enter_context(serve_ours(bench)), MEMORY: stack.enter_context(serve_elasticmq(bench))}
        for side in sides.values():
            warm_up(bench, side)
        calls = [(call, name) for call in GOALS for name in (*sides, NATIVE)]
        runs = {f"{call}: {name}": partial(run, bench, sides, call, name) for call, name in calls}
        samples = bench.interleave(runs, bench.count(3, 1))
    rows = [traffic.row(name, sample_runs) for name, sample_runs in samples.items()]
    verdicts = []
    for call, goal in GOALS.items():
        ours, memory, native = (samples[f"{call}: {name}"] for name in (OURS, MEMORY, NATIVE))
        rates = pairwise_ratios(traffic.rates(ours), traffic.rates(memory))
        cpu = pairwise_ratios([sample.cpu for sample in ours], [sample.cpu for sample in native])
        verdicts.append(Verdict(f"{call}: {OURS} / {MEMORY}", rates, goal=goal))
        verdicts.append(Verdict(f"{call}: CPU of the facade / native", cpu, goal=MAX_CPU_RATIO, better="lower"))
    return Report("", "", rows, verdicts, NOTES)


# The sides


@contextlib.contextmanager
def serve_ours(bench: Bench) -> Iterator[Side]:
    directory = bench.new_directory("queuey")
    (directory / "queuey.toml").write_text(SETTINGS)
    environment = {"QUEUEY_CONFIG": str(directory / "queuey.toml")}
    with contextlib.closing(service.prepare(directory, ())) as store:
        deployment = access_keys.deployment_secret(SqsFacade(), Settings(data=directory), os.environ)
        name = access_keys.new_access_key()
        bridge.run(store.applications.add_key(service.APPLICATION, access_keys.digest_of(name)))
        key: AccessKey = {"id": name, "secret": access_keys.secret_of(deployment, name)}
        with service.serve(directory, environment=environment) as server:

            def refill(count: int) -> None:
                queue = bridge.run(store.catalogue.queue(service.APPLICATION, QUEUE))
                service.fill(store, queue, traffic.bodies(1000), count)

            yield create_queues(Side(server, f"{PREFIX}/", key, refill))


@contextlib.contextmanager
def serve_elasticmq(bench: Bench) -> Iterator[Side]:
    with elasticmq.serve(bench.new_directory("elasticmq")) as server:

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
        send(side, seconds, CONNECTIONS, many=many)
    for many in (False, True):
        receive_and_delete(side, bench.count(20_000 if many else 4_000, 200), CONNECTIONS, many=many)


# The calls


def run(bench: Bench, sides: Mapping[str, Side], call: str, name: str) -> Sample:
    """Makes one kind of call on one side: sends for a time, or takes a number of messages."""
    seconds = bench.duration(2, 0.3)
    many = call in {SEND_MANY, TAKE_MANY}
    count = bench.count(CONNECTIONS * (1000 if many else 200), 200)
    side = sides[OURS if name == NATIVE else name]
    if call in {SEND, SEND_MANY}:
        return (native_send if name == NATIVE else send)(side, seconds, CONNECTIONS, many=many)
    return (native_receive_and_delete if name == NATIVE else receive_and_delete)(side, count, CONNECTIONS, many=many)


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
        "signed": {"key": side.key, "action": "DeleteMessageBatch" if many else "DeleteMessage", "path": side.path},
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
