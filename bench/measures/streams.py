"""Measures live streams beside other servers of streams."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from bench.baselines import live_streams
from bench.baselines.live_streams import Caller, Streams
from bench.harness import Bench, Skip, Void, measure
from bench.load import traffic
from bench.load.listeners import ListenPlan, ReceivedMessages
from bench.results import Report, Row, Verdict
from bench.started import service
from bench.started.processes import Process

CONNECTION_SETTINGS = {"QUEUEY_CONNECTIONS": "30000", "QUEUEY_WAIT_SLOTS": "15000"}


@contextlib.contextmanager
def follow_streams(server: Process, paths: Sequence[str], times: str) -> Iterator[list[ReceivedMessages]]:
    """Follows streams in a child process during the block; afterwards the list has one entry with its result.

    Raises:
        Void: A stream was refused, or ended.
    """
    plan: ListenPlan = {"port": server.port, "paths": list(paths), "times": times}
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
    with follow_streams(server.process, server.paths, TIME_FORMAT.format("([0-9.]+)")) as heard:
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
