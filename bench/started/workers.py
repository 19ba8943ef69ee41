"""Runs ``qdo work`` processes and reads from their metrics how many messages they have handled."""

from __future__ import annotations

import contextlib
import http.client
import re
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from bench import handlers
from bench.harness import Void
from bench.load.traffic import KEY
from bench.started import service
from bench.started.processes import ROOT, Process, start
from tests.servers.served import free_port

QUEUE = "bench"
HANDLERS = {"plain": "plain", "async": "awaited"}
HANDLED = re.compile(rf'^qdo_messages_handled_total{{queue="{QUEUE}"}} (\S+)$', re.MULTILINE)
GATE_FILE = "open"
"""Name of the file that opens the gate for all workers of a directory."""
POLL_SECONDS = 0.1
"""Seconds between two reads of the counts; a read costs a worker about a millisecond."""
STALLED_SECONDS = 60.0
"""Seconds without a handled message after which a run is void."""
WARM_SHARE, END_SHARE = 0.1, 0.95
"""Shares of all messages between which the rate is measured: all workers run, and none has run out of work."""


@dataclass(frozen=True)
class Pace:
    """The rate at which messages were handled.

    Attributes:
        rate: Messages per second of the worker.
        cpu: CPU microseconds of the worker per message.
        server: CPU microseconds of the service per message.
    """

    rate: float
    cpu: float
    server: float


class Snapshot:
    """A snapshot of the counts and CPU times at one moment."""

    def __init__(self, handled: int, worker: Process, server: Process) -> None:
        self.instant = time.perf_counter()
        self.handled = handled
        self.cpu = worker.cpu_seconds()
        self.server = server.cpu_seconds()

    def pace_until(self, end: Snapshot) -> Pace:
        handled = end.handled - self.handled
        return Pace(
            rate=handled / (end.instant - self.instant),
            cpu=(end.cpu - self.cpu) * 1e6 / handled,
            server=(end.server - self.server) * 1e6 / handled,
        )


def run_worker(
    server: Process, directory: Path, *, handler: str, tree: Path = ROOT
) -> contextlib.AbstractContextManager[Process]:
    """Runs a worker with default settings, which joins once the gate is open. Its port serves its metrics."""
    port = free_port()
    module = handlers.__name__
    options = {
        "--url": f"http://127.0.0.1:{server.port}",
        "--app": service.APPLICATION,
        "--key": KEY,
        "--queue": QUEUE,
        "--group": directory.name,
        "--context": f"{module}:gate",
        "--metrics": f"127.0.0.1:{port}",
        "--log-level": "warning",
    }
    command = [sys.executable, "-m", "qdo", "work", f"{module}:{HANDLERS[handler]}"]
    command += [text for pair in options.items() for text in pair]
    return start(f"worker-{port}", command, port, directory, {handlers.GATE: str(directory / GATE_FILE)}, tree)


def handle_all(server: Process, directory: Path, messages: int, *, handler: str = "plain", tree: Path = ROOT) -> Pace:
    """Lets a new group of one worker handle all messages of the queue and measures the steady part.

    Args:
        server: The service.
        directory: New directory for the worker's log; its name is the name of the group.
        messages: Number of messages in the queue.
        handler: A key of :data:`HANDLERS`.
        tree: Checkout of the project that the worker runs.

    Raises:
        Void: The worker stalled, or handled more messages than the queue has.
    """
    with run_worker(server, directory, handler=handler, tree=tree) as worker:
        (directory / GATE_FILE).touch()
        begin = first = last = current = Snapshot(read_count(worker), worker, server)
        progress = current.instant
        while current.handled < messages:
            time.sleep(POLL_SECONDS)
            previous, current = current, Snapshot(read_count(worker), worker, server)
            if current.handled > previous.handled:
                progress = current.instant
            elif current.instant - progress > STALLED_SECONDS:
                raise Void(f"{current.handled:,} of {messages:,} messages handled, then no more:\n{worker.log_tail()}")
            if first.handled < WARM_SHARE * messages:
                first = last = current
            if current.handled <= END_SHARE * messages:
                last = current
        if current.handled > messages:
            raise Void(f"{current.handled:,} messages handled of {messages:,}:\n{worker.log_tail()}")
    # In a quick run, all messages may be handled between two reads.
    return first.pace_until(last) if first.handled < last.handled else begin.pace_until(current)


def read_count(worker: Process) -> int:
    """Returns the handled messages from a worker's metrics; 0 before the first one.

    Raises Void without an answer, or if the answer is an error.
    """
    connection = http.client.HTTPConnection("127.0.0.1", worker.port, timeout=30)
    try:
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        text = answer.read().decode()
    except (OSError, http.client.HTTPException) as error:
        raise Void(f"{worker.name} does not serve its metrics: {error}\n{worker.log_tail()}") from error
    finally:
        connection.close()
    if answer.status != http.HTTPStatus.OK:
        raise Void(f"{worker.name} does not serve its metrics: {answer.status} {text[:200]}\n{worker.log_tail()}")
    match = HANDLED.search(text)
    return int(float(match[1])) if match else 0
