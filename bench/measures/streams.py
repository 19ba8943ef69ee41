"""Measures live streams: the memory of idle streams, the delay of messages, and the effect on other requests."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench.baselines import live_streams
from bench.baselines.live_streams import Caller, Streams
from bench.harness import Bench, Skip, Void, measure
from bench.load import traffic
from bench.load.listeners import ListenPlan, ReceivedMessages
from bench.load.traffic import Job, Sample
from bench.load.waiting import read_metric
from bench.results import Report, Row, Verdict
from bench.started import nodes, on_cassandra, service
from bench.started.processes import Process
from queuey.errors import QueueyError
from queuey.messages import NewMessage, Queue, QueueSpec
from queuey.storage import Store, bridge

IDLE_SECONDS = 10.0
"""Seconds without messages in which the idle CPU time is measured."""
POSTERS = 8
"""Connections that post to the inboxes."""
CREATORS = 16
"""Threads that create queues."""
POSTS_PER_SECOND = 100
"""Messages per second to the streams on Cassandra. Two cores cannot sustain three times as many, because no queue is
in memory."""
CONNECTION_SETTINGS = {"QUEUEY_CONNECTIONS": "30000", "QUEUEY_WAIT_SLOTS": "15000"}


@contextlib.contextmanager
def follow_streams(
    server: Process, paths: Sequence[str], *, each: bool = False, times: str | None = None
) -> Iterator[list[ReceivedMessages]]:
    """Follows streams in a child process during the block; afterwards the list has one entry with its result.

    Raises:
        Void: A stream was refused, or ended.
    """
    plan: ListenPlan = {"port": server.port, "paths": list(paths), "each": each}
    if times is not None:
        plan["times"] = times
    command = [sys.executable, "-m", "bench.load.listeners"]
    results: list[ReceivedMessages] = []
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            child.stdin.write(json.dumps(plan) + "\n")
            child.stdin.flush()
            if child.stdout.readline() != "open\n":
                raise Void(f"{server.name}: the streams could not be opened\n{server.log_tail()}")
            yield results
            child.stdin.write("\n")
            child.stdin.flush()
            line = child.stdout.readline()
            if not line:
                raise Void(f"{server.name}: streams have ended\n{server.log_tail()}")
            results.append(json.loads(line))
        finally:
            child.kill()


@measure("streams", "Ten thousand live streams on one worker, each of an inbox of its own")
def measure_live_streams(bench: Bench) -> Report:
    """Memory is the growth of the worker's. Other requests are compared with the same requests without streams."""
    count = bench.count(10_000, 300)
    directory = bench.new_directory("queuey")
    service.prepare(directory, [*(f"inbox{number:05}" for number in range(count)), "bench", "read"]).close()
    inboxes = [f"{service.BASE}/inbox{number:05}" for number in range(count)]
    texts = traffic.bodies(1)
    posts = Job([traffic.request("POST", path, texts[0], {"Content-Type": "text/plain"}) for path in inboxes], 201)
    api = {
        "POST of 1": traffic.posts_of_one(f"{service.BASE}/bench", traffic.bodies(64)),
        "GET of 1": traffic.gets([f"{service.BASE}/read?limit=1"]),
    }
    samples: dict[str, list[Sample]] = {}
    seconds, rounds = bench.duration(4, 0.3), bench.count(5, 1)
    with service.serve(directory, environment=CONNECTION_SETTINGS) as server:
        traffic.run(server, posts, seconds=60, connections=POSTERS, warm=0, count=count)  # Loads the queues.

        def measure_api(when: str) -> None:
            for action, job in api.items():
                for _ in range(rounds):
                    run = traffic.run(server, job, seconds=seconds, connections=8)
                    samples.setdefault(f"{action}, {when}", []).append(run)

        measure_api("no streams")
        before = max(server.memory())
        with follow_streams(server, [f"{path}?since=now" for path in inboxes]) as heard:
            time.sleep(1)
            memory_kb = (max(server.memory()) - before) * 1e3 / count
            cpu_before = server.cpu_seconds()
            time.sleep(bench.duration(IDLE_SECONDS, 1))
            idle = (server.cpu_seconds() - cpu_before) / bench.duration(IDLE_SECONDS, 1) * 100
            measure_api(f"{count:,} streams")
            traffic.run(server, posts, seconds=60, connections=POSTERS, warm=0, count=count)
            time.sleep(1)
        [own] = heard
        if own["messages"] < count:
            raise Void(f"only {own['messages']} of {count} messages came")
        with follow_streams(server, [f"{service.BASE}/bench?since=now"] * min(1000, count)) as shared:
            traffic.run(server, api["POST of 1"], seconds=10, connections=1, warm=0, count=20)
            time.sleep(1)
    rows = [traffic.row(name, runs) for name, runs in samples.items()]
    rows += [
        Row("a stream's memory", [memory_kb], "KB"),
        Row("idle", [idle], "% of a core"),
        Row("a message to each inbox, p99", [own["p99"]], "ms", {"p50 ms": own["p50"], "longest ms": own["longest"]}),
        Row("1,000 streams on one queue, p99", [shared[0]["p99"]], "ms", {"p50 ms": shared[0]["p50"]}),
    ]
    verdicts = [
        Verdict("memory of a stream", [memory_kb], unit="KB", goal=15, better="lower"),
        Verdict("idle", [idle], unit="%", goal=5, better="lower"),
        Verdict("a message to each inbox, p99", [own["p99"]], unit="ms", goal=1000, better="lower"),
    ]
    for action in api:
        tails = [[run.p99 for run in samples[f"{action}, {when}"]] for when in (f"{count:,} streams", "no streams")]
        ratios = [a / b for a, b in zip(*map(sorted, tails), strict=True)]
        verdicts.append(Verdict(f"p99 of {action}: beside them / without", ratios, goal=1.5, better="lower"))
    return Report("", "", rows, verdicts, ["Messages of 200 B; streams by HTTP/1.1, without TLS."])


@measure("cassandra-streams", "The same on Cassandra, and messages that another process stores, a hundred a second")
def measure_live_streams_on_cassandra(bench: Bench) -> Report:
    """This process posts through its own store, so the worker can learn of messages only from Cassandra."""
    count = bench.count(10_000, 300)
    seconds = bench.duration(30, 5)
    with nodes.cassandra(bench) as cassandra, contextlib.ExitStack() as stack:
        store = stack.enter_context(contextlib.closing(on_cassandra.prepare(cassandra)))
        names = [f"inbox{number:05}" for number in range(count)]
        with ThreadPoolExecutor(CREATORS) as pool:
            queues = list(
                pool.map(
                    lambda name: bridge.run(store.catalogue.create_queue(service.APPLICATION, name, QueueSpec()))[0],
                    names,
                )
            )
        server = stack.enter_context(
            on_cassandra.serve(cassandra, bench.new_directory("queuey"), environment=CONNECTION_SETTINGS)
        )
        before = max(server.memory())
        with follow_streams(server, [f"{service.BASE}/{name}?since=now" for name in names]) as heard:
            time.sleep(2 * store.read_delay(queues[0]))  # Earlier messages are below the horizon now.
            memory_kb = (max(server.memory()) - before) * 1e3 / count
            cpu_before, queried, began = server.cpu_seconds(), read_store_requests(server), time.monotonic()
            time.sleep(bench.duration(3 * IDLE_SECONDS, 3))
            passed = time.monotonic() - began
            idle, queries = (
                (server.cpu_seconds() - cpu_before) / passed * 100,
                (read_store_requests(server) - queried) / passed,
            )
            posted = _post_steadily(store, queues, seconds)
            time.sleep(store.read_delay(queues[0]) + 10)
        [result] = heard
        if result["messages"] != posted:
            raise Void(f"{result['messages']} of {posted} messages came")
        delays = {"p50 ms": result["p50"], "longest ms": result["longest"]}
        max_ms = (store.read_delay(queues[0]) + 1) * 1000
    return Report(
        "",
        "",
        [
            Row("a stream's memory", [memory_kb], "KB"),
            Row("idle", [idle], "% of a core"),
            Row("messages posted", [posted / seconds], "messages/s"),
            Row("from a message's time to its arrival, p99", [result["p99"]], "ms", delays),
        ],
        [
            Verdict("idle, queries of the worker", [queries], unit="a second", goal=50, better="lower"),
            Verdict("to arrival, p99, with the read delay", [result["p99"]], unit="ms", goal=max_ms, better="lower"),
        ],
        ["One node, one worker, messages of 200 B. The queries include four a second for the clock."],
    )


MEMORY_GOALS = {"Centrifugo": 0.5}
"""Max memory of a stream of Queuey, as a share of the other server's."""
TIME_FORMAT = "sent={};"
"""Format of the publication time in a message, on all sides."""
MESSAGES_PER_SECOND = 100
"""Messages per second."""


@measure("peers-streams", "Live streams beside Centrifugo and the reference server of Durable Streams", peers=True)
def compare_live_streams(bench: Bench) -> Report:
    """Runs one server at a time: memory of an idle stream, and the time from publication to arrival."""
    count, seconds = bench.count(5_000, 100), bench.duration(20, 2)
    taken: dict[str, tuple[float, ReceivedMessages]] = {}
    notes = [
        (
            f"{count:,} streams of an inbox each, over HTTP/1.1; "
            f"{MESSAGES_PER_SECOND} messages of {traffic.BODY_BYTES} B a second."
        ),
        "queuey and Durable Streams keep messages on the disk (queuey with fsync), Centrifugo in memory.",
    ]
    for name, serve in SERVERS.items():
        try:
            with serve(bench.new_directory("streams"), count) as server:
                taken[name] = measure_streams(bench, server, seconds)
        except Skip as reason:
            notes.append(f"SKIPPED {name}: {reason}")
    rows = [Row(f"memory of a stream: {name}", [size], "KB") for name, (size, _) in taken.items()]
    rows += [
        Row(f"to arrival, p50: {name}", [heard["p50"]], "ms", {"p99 ms": heard["p99"]})
        for name, (_, heard) in taken.items()
    ]
    verdicts = [
        Verdict(
            f"memory of a stream: queuey / {name}",
            [taken["queuey"][0] / size],
            goal=MEMORY_GOALS.get(name),
            better="lower",
        )
        for name, (size, _) in taken.items()
        if name != "queuey"
    ]
    return Report("", "", rows, verdicts, notes)


def measure_streams(bench: Bench, server: Streams, seconds: float) -> tuple[float, ReceivedMessages]:
    """Follows all streams; returns the KB of memory of an idle stream, and the result of the listeners.

    Raises:
        Void: Messages did not arrive.
    """
    before = sum(server.process.memory())
    with follow_streams(server.process, server.paths, times=TIME_FORMAT.format("([0-9.]+)")) as heard:
        time.sleep(bench.duration(5, 1))
        memory_kb = (sum(server.process.memory()) - before) * 1e3 / len(server.paths)
        published, began = 0, time.monotonic()
        while (elapsed := time.monotonic() - began) < seconds:
            if published < elapsed * MESSAGES_PER_SECOND:
                text = TIME_FORMAT.format(f"{time.time():.6f}")
                server.publish(bench.rng.randrange(len(server.paths)), text + "x" * (traffic.BODY_BYTES - len(text)))
                published += 1
            else:
                time.sleep(0.001)
        time.sleep(1)
    [result] = heard
    if result["messages"] != published:
        raise Void(f"{result['messages']} of {published} messages came")
    return memory_kb, result


@contextlib.contextmanager
def serve_ours(directory: Path, count: int) -> Iterator[Streams]:
    names = [f"inbox{number:05}" for number in range(count)]
    service.prepare(directory, names).close()
    with (
        service.serve(directory, environment=CONNECTION_SETTINGS) as server,
        contextlib.closing(Caller(server.port)) as caller,
    ):
        headers = {"Authorization": f"Application {traffic.KEY}", "Content-Type": "text/plain"}
        yield Streams(
            server,
            [f"{service.BASE}/{name}?since=now" for name in names],
            lambda number, text: caller.send("POST", f"{service.BASE}/{names[number]}", text, headers),
        )


SERVERS: Mapping[str, Callable[[Path, int], contextlib.AbstractContextManager[Streams]]] = {
    "queuey": serve_ours,
    "Centrifugo": live_streams.centrifugo,
    "Durable Streams": live_streams.durable_streams,
}


def read_store_requests(server: Process) -> float:
    return read_metric(server, "queuey_store_requests_total")


def _post_steadily(store: Store, queues: list[Queue], seconds: float) -> int:
    """Appends :data:`POSTS_PER_SECOND` messages per second to random queues; returns the number stored.

    Raises:
        Void: A message could not be stored.
    """
    rng, text, begun = random.Random(1), traffic.bodies(1)[0], 0

    async def post() -> int:
        nonlocal begun
        began, appends = time.monotonic(), []
        while (elapsed := time.monotonic() - began) < seconds:
            while begun < elapsed * POSTS_PER_SECOND:
                begun += 1
                message = NewMessage(text, 1, service.THREE_DAYS)
                appends.append(asyncio.ensure_future(store.messages.append(rng.choice(queues), [message])))
            await asyncio.sleep(0.005)
        return sum(map(len, await asyncio.gather(*appends)))

    try:
        return asyncio.run(post())
    except QueueyError as error:
        raise Void(f"a message could not be stored: {error}") from error
