"""Measures the CPU of calls of facades without credentials against the native calls that they are translated to."""

from __future__ import annotations

import contextlib
import json
import secrets
import uuid
from collections.abc import Callable, Sequence
from functools import partial

from bench.harness import Bench, measure
from bench.load import traffic
from bench.load.generator import COUNTER
from bench.load.traffic import Job, Sample
from bench.measures.facades.emodb import CONNECTIONS, MAX_CPU_RATIO, QUEUE
from bench.results import Report, Verdict, pairwise_ratios
from bench.started import processes, service
from queuey.client import Client
from queuey.messages import QueueSpec
from queuey.storage import Store, bridge

NATIVE = f"{service.BASE}/{QUEUE}"
SETTINGS = """
[facades.mq]
prefix = "/mq"
redelivery = 3600

[facades.rqms]
prefix = "/rqms"
"""


@measure("mq_rqms", "Calls by the protocols of MQ and RQMS, against the native calls")
def compare_mq_and_rqms(bench: Bench) -> Report:
    """All go to the same queue of the same service, on SQLite with an fsync before each answer."""
    ours, texts = bench.new_directory("queuey"), traffic.bodies(100)
    config = ours / "queuey.toml"
    config.write_text(SETTINGS)
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(contextlib.closing(service.prepare(ours)))
        server = stack.enter_context(service.serve(ours, environment={"QUEUEY_CONFIG": str(config)}))
        count = bench.count(2000, 200)
        calls: dict[str, Callable[[], Sample]] = {
            "post, native": partial(_send, bench, server, lambda: traffic.posts_of_one(NATIVE, texts)),
            "post, MQ": partial(_send, bench, server, lambda: _make_posts(f"/mq/{QUEUE}/messages", texts)),
            "fetch 1, native": partial(_fetch, store, server, _make_native_claim(1), count),
            "fetch 1, MQ": partial(_fetch, store, server, lambda queue: ("GET", f"/mq/{queue}/messages"), count),
            "post with an id, native": partial(_send, bench, server, lambda: _make_named_posts("native", texts)),
            "post with an id, RQMS": partial(_send, bench, server, lambda: _make_named_posts("rqms", texts)),
            "fetch 10, native": partial(_fetch, store, server, _make_native_claim(10, "&wait=0.25"), count // 4, 10),
            "fetch 10, RQMS": partial(
                _fetch, store, server, lambda queue: ("GET", f"/rqms/{queue}?count=10&time=3600"), count // 4, 10
            ),
        }
        for side in ("native", "MQ", "RQMS"):
            calls[f"acknowledge, {side}"] = partial(_acknowledge, store, server, side, count)
        samples = bench.interleave(calls, bench.count(7, 1))
    verdicts = []
    for action, theirs in (
        ("post", "MQ"),
        ("fetch 1", "MQ"),
        ("acknowledge", "MQ"),
        ("post with an id", "RQMS"),
        ("fetch 10", "RQMS"),
        ("acknowledge", "RQMS"),
    ):
        cpu = ([run.cpu for run in samples[f"{action}, {side}"]] for side in (theirs, "native"))
        verdicts.append(
            Verdict(f"{action}: CPU of {theirs} / native", pairwise_ratios(*cpu), goal=MAX_CPU_RATIO, better="lower")
        )
    notes = [f"{CONNECTIONS} connections, {traffic.BODY_BYTES} B bodies, 1 worker, one partition."]
    return Report("", "", [traffic.row(name, runs) for name, runs in samples.items()], verdicts, notes)


def _make_native_claim(limit: int, more: str = "") -> Callable[[str], tuple[str, str]]:
    return lambda queue: ("POST", f"{service.BASE}/{queue}/claims?limit={limit}&ttl=3600{more}")


def _send(bench: Bench, server: processes.Process, job: Callable[[], Job]) -> Sample:
    return traffic.run(server, job(), seconds=bench.duration(2.5, 0.3), connections=CONNECTIONS)


def _make_posts(path: str, texts: Sequence[str]) -> Job:
    return Job([traffic.request("POST", path, text) for text in texts], 201)


def _make_named_posts(which: str, texts: Sequence[str]) -> Job:
    """Returns posts with ids that no other run uses: to RQMS, or to the native resource of names."""
    name = f"{secrets.token_hex(12)}-{COUNTER.decode()}"
    path = f"/rqms/{QUEUE}?id={name}" if which == "rqms" else f"{NATIVE}/named/{name}"
    headers = {"X-Encoding": "json"} if which == "native" else None
    requests = [traffic.request("POST", path, f'{{"value":"{text}"}}', headers) for text in texts]
    return Job(requests, 201, numbered=10_000_000)


def _fetch(
    store: Store,
    server: processes.Process,
    asked: Callable[[str], tuple[str, str]],
    count: int,
    messages: int = 1,
) -> Sample:
    """Fetches from a new queue, because messages claimed by earlier runs would not be returned."""
    queue = _fill(store, (count + 2 * CONNECTIONS) * messages)
    job = Job([traffic.request(*asked(queue))], 200, messages)
    return traffic.run(server, job, seconds=60, connections=CONNECTIONS, warm=0, count=count)


def _acknowledge(store: Store, server: processes.Process, side: str, count: int) -> Sample:
    """Acknowledges messages of a new queue, one per request. They were claimed before the measured time."""
    queue = _fill(store, count + 2 * CONNECTIONS)
    requests: list[str] = []
    with Client(f"http://127.0.0.1:{server.port}", key=traffic.KEY, application=service.APPLICATION) as client:
        jobs = client.job_queue(queue)
        while received := jobs.receive(1000, ttl=3600):
            requests += (_make_acknowledgement(side, queue, m.message.id, m.receipt) for m in received)
    job = Job(requests, 202 if side == "MQ" else 200)
    return traffic.run(server, job, seconds=60, connections=CONNECTIONS, warm=0, count=count)


def _make_acknowledgement(side: str, queue: str, message: str, receipt: str) -> str:
    if side == "native":
        kind = {"Content-Type": "application/json"}
        body = json.dumps({"receipts": [receipt]})
        return traffic.request("POST", f"{service.BASE}/{queue}/claims/ack", body, kind)
    if side == "MQ":
        return traffic.request("DELETE", f"/mq/{queue}/messages/{uuid.UUID(message)}")
    ticket = json.dumps([message, receipt])
    return traffic.request("DELETE", f"/rqms/{queue}", ticket, {"Content-Length": str(len(ticket))})


def _fill(store: Store, count: int) -> str:
    """Returns the name of a new queue with ``count`` messages.

    The service caches queues for a while, so no queue is deleted and created again.
    """
    queue, _ = bridge.run(
        store.catalogue.create_queue(service.APPLICATION, f"{QUEUE}-{secrets.token_hex(4)}", QueueSpec())
    )
    service.fill(store, queue, traffic.bodies(1000), count)
    return queue.name
