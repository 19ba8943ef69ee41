"""Measures early streams on Cassandra: the delay from a post's answer to another process's event, and idle costs."""

from __future__ import annotations

import contextlib
import http.client
import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import quantiles

from bench.harness import Bench, Void, measure
from bench.load import traffic
from bench.load.listeners import ReceivedMessages
from bench.measures.streams import CONNECTION_SETTINGS, follow_streams, read_store_requests
from bench.results import Report, Row, Verdict
from bench.started import nodes, on_cassandra, service
from bench.started.processes import Process
from queuey import ids
from queuey.messages import NewMessage, Queue, QueueSpec
from queuey.storage import Store, bridge

INBOXES = 100
POSTS_PER_SECOND = 20
"""Messages per second, each to a random inbox."""
_ESTABLISHED = "01"

AcknowledgementTimes = dict[str, float]
"""Time of each message's acknowledgement, by message id."""


@measure("cassandra-early", "Early streams on Cassandra: from the acknowledgement to the event at another process")
def measure_early_streams(bench: Bench) -> Report:
    """The other service is this process, which posts through its own store. Other workers belong to one service."""
    seconds, settled = bench.duration(30, 5), bench.duration(10, 3)
    rows: list[Row] = []
    verdicts: list[Verdict] = []
    with nodes.cassandra(bench) as cassandra, contextlib.ExitStack() as stack:
        store = stack.enter_context(contextlib.closing(on_cassandra.prepare(cassandra)))
        names = [f"inbox{number:03}" for number in range(INBOXES)]
        queues = [bridge.run(store.catalogue.create_queue(service.APPLICATION, name, QueueSpec()))[0] for name in names]
        paths = {
            kind: [f"{service.BASE}/{name}?since=now{query}" for name in names]
            for kind, query in (("plain", ""), ("early", "&early=1"))
        }
        directory = bench.new_directory("one")
        with on_cassandra.serve(cassandra, directory, environment=CONNECTION_SETTINGS) as server:
            rows.append(Row("idle, no streams", [_measure_query_rate(server, seconds)], "queries/s"))
            for kind, stream_paths in paths.items():
                with follow_streams(server, stream_paths, each=True) as heard:
                    time.sleep(settled)
                    rows.append(Row(f"idle, {kind} streams", [_measure_query_rate(server, seconds)], "queries/s"))
                    # The plain streams come first and warm up the processes.
                    acknowledged = _post_for(queues, seconds, _make_store_poster(store))
                    time.sleep(settled)
            _add_delays("another service", _find_delays(heard[0], acknowledged), rows, verdicts)
        with on_cassandra.serve(
            cassandra, bench.new_directory("two"), workers=2, environment=CONNECTION_SETTINGS
        ) as server:
            with follow_streams(server, paths["early"], each=True) as heard, _connect(server) as (connection, own):
                time.sleep(settled)
                workers = _pids_by_port(server)
                acknowledged = _post_for(queues, seconds, _make_http_poster(connection))
                time.sleep(settled)
            others = {port for port, worker in workers.items() if worker != workers[own]}
            delays = _find_delays(heard[0], acknowledged, others)
            _add_delays("another worker of the service", delays, rows, verdicts)
    load = os.getloadavg()[0]
    notes = [
        f"One node, {POSTS_PER_SECOND} messages a second to {INBOXES} inboxes; machine's load at the end {load:.1f}."
    ]
    return Report("", "", rows, verdicts, notes)


def _add_delays(who: str, took: list[float], rows: list[Row], verdicts: list[Verdict]) -> None:
    """Adds the delays to rows and verdicts. Raises Void with fewer than two."""
    if len(took) < 2:
        raise Void(f"too few messages arrived from {who}")
    cuts = quantiles(took, n=100)
    p50, p99 = cuts[49] * 1000, cuts[98] * 1000
    rows.append(Row(f"{who}, p50", [p50], "ms", {"p99 ms": p99, "longest ms": max(took) * 1000, "messages": len(took)}))
    verdicts.append(Verdict(f"{who}, p50", [p50], unit="ms", goal=100, better="lower"))
    verdicts.append(Verdict(f"{who}, p99", [p99], unit="ms", goal=400, better="lower"))


def _find_delays(
    heard: ReceivedMessages, acknowledged: AcknowledgementTimes, ports: set[int] | None = None
) -> list[float]:
    """Returns the seconds from acknowledgement to first event, of connections from these ports (None for all)."""
    return [
        arrived_at - acknowledged[identifier]
        for port, first in heard["first"].items()
        if ports is None or int(port) in ports
        for identifier, arrived_at in first.items()
    ]


def _measure_query_rate(server: Process, seconds: float) -> float:
    queries_before, began = read_store_requests(server), time.monotonic()
    time.sleep(seconds)
    return (read_store_requests(server) - queries_before) / (time.monotonic() - began)


def _post_for(
    queues: list[Queue], seconds: float, post: Callable[[Queue, AcknowledgementTimes], None]
) -> AcknowledgementTimes:
    """Posts to random queues, :data:`POSTS_PER_SECOND` times a second at random moments, and waits a second more.

    Returns when each message was acknowledged.
    """
    rng, acknowledged = random.Random(1), AcknowledgementTimes()
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(rng.expovariate(POSTS_PER_SECOND))
        post(rng.choice(queues), acknowledged)
    time.sleep(1)
    return acknowledged


def _make_store_poster(store: Store) -> Callable[[Queue, AcknowledgementTimes], None]:
    def post(queue: Queue, acknowledged: AcknowledgementTimes) -> None:
        [position] = bridge.run(store.messages.append(queue, [NewMessage("x", 1, service.THREE_DAYS)]))
        acknowledged[ids.to_hex(position)] = time.time()

    return post


def _make_http_poster(connection: http.client.HTTPConnection) -> Callable[[Queue, AcknowledgementTimes], None]:
    headers = {"Authorization": f"Application {traffic.KEY}", "Content-Type": "text/plain"}

    def post(queue: Queue, acknowledged: AcknowledgementTimes) -> None:
        connection.request("POST", f"{service.BASE}/{queue.name}", b"x", headers)
        answer = connection.getresponse()
        body = answer.read()
        if answer.status != 201:
            raise Void(f"a message could not be stored: {body!r}")
        acknowledged[body.partition(b'"key":"')[2][:32].decode()] = time.time()

    return post


@contextlib.contextmanager
def _connect(server: Process) -> Iterator[tuple[http.client.HTTPConnection, int]]:
    """Opens a connection; yields it and its local port."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    connection.connect()
    assert connection.sock is not None
    port: int = connection.sock.getsockname()[1]
    with contextlib.closing(connection):
        yield connection, port


def _pids_by_port(server: Process) -> dict[int, int]:
    """Returns the pid at the server's end of each connection, by the client's port."""
    owners: dict[str, int] = {}
    for pid in server.pids():
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                owners[str(link.readlink())] = pid
    pids_by_port = {}
    for line in Path("/proc/net/tcp").read_text("ascii").splitlines()[1:]:
        _, local, remote, state, *rest = line.split()
        if state == _ESTABLISHED and int(local.partition(":")[2], 16) == server.port:
            owner = owners.get(f"socket:[{rest[5]}]")
            if owner is not None:
                pids_by_port[int(remote.partition(":")[2], 16)] = owner
    return pids_by_port
