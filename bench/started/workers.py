"""Real workers, ``qdo work``, and how many messages they have handled by their own count."""

from __future__ import annotations

import contextlib
import http.client
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench import handlers
from bench.harness import Void
from bench.load.traffic import KEY
from bench.started import service
from bench.started.processes import ROOT, Process, package, start
from tests.servers.served import free_port

QUEUE = "bench"
HANDLERS = {"plain": "plain", "async": "awaited"}
HANDLED = re.compile(rf'^qdo_messages_handled_total{{queue="{QUEUE}"}} (\S+)$', re.MULTILINE)
OPEN = "open"
"""The file that opens the gate of all workers of a directory."""
LOOK_SECONDS = 0.1
"""Between two looks at the counts; a look costs a worker about a millisecond."""
STALLED_SECONDS = 60.0
"""Without a message handled, after which a run is void."""
WARM, END = 0.1, 0.95
"""Parts of all messages between which it is measured: all workers are up, and none has run out of work."""


@dataclass(frozen=True)
class Pace:
    """How fast messages were handled.

    Attributes:
        rate: Messages a second, of all workers together, once all of them were at work.
        cpu: Microseconds of the workers' CPU a message in that time.
        server: The same of the service.
    """

    rate: float
    cpu: float
    server: float


class Look:
    """What was there at one instant."""

    def __init__(self, counts: Sequence[int], workers: Sequence[Process], server: Process) -> None:
        self.instant = time.perf_counter()
        self.counts = counts
        self.handled = sum(counts)
        self.cpu = sum(worker.cpu_seconds() for worker in workers)
        self.server = server.cpu_seconds()

    def until(self, end: Look) -> Pace:
        """Returns what went on between two instants."""
        handled = end.handled - self.handled
        return Pace(
            rate=handled / (end.instant - self.instant),
            cpu=(end.cpu - self.cpu) * 1e6 / handled,
            server=(end.server - self.server) * 1e6 / handled,
        )


def worker(
    server: Process, directory: Path, *, handler: str, place: str = "", tree: Path = ROOT
) -> contextlib.AbstractContextManager[Process]:
    """Runs a worker with its default settings, which joins when the gate is open; its port is that of its metrics."""
    port = free_port()
    module = f"{package(tree)}.handlers"
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
    if place:
        options["--coordination"] = place
    command += [text for pair in options.items() for text in pair]
    return start(f"worker-{port}", command, port, directory, {handlers.GATE: str(directory / OPEN)}, tree)


def handle(
    server: Process,
    directory: Path,
    messages: int,
    *,
    handler: str = "plain",
    count: int = 1,
    place: str = "",
    tree: Path = ROOT,
) -> Pace:
    """Has a new group handle everything in the queue and measures the steady part.

    Args:
        server: The service.
        directory: Fresh; where the workers log, and the name of their group.
        messages: How many there are.
        handler: Which of :data:`HANDLERS`.
        count: Workers.
        place: Where they meet; blank: at the service.
        tree: Of the project; theirs.

    Raises:
        Void: They stopped on the way, or handled more than there is.
    """
    with contextlib.ExitStack() as stack:
        start_one = partial(worker, server, directory, handler=handler, place=place, tree=tree)
        running = [stack.enter_context(start_one()) for _ in range(count)]
        (directory / OPEN).touch()
        begin = first = last = look = Look(counts(running), running, server)
        moved = look.instant
        while look.handled < messages:
            time.sleep(LOOK_SECONDS)
            before, look = look, Look(counts(running), running, server)
            if look.handled > before.handled:
                moved = look.instant
            elif look.instant - moved > STALLED_SECONDS:
                raise Void(f"{look.handled:,} of {messages:,} messages handled, and no more:\n{logs(running)}")
            if first.handled < WARM * messages or not all(first.counts):
                first = last = look
            if look.handled <= END * messages:
                last = look
        if look.handled > messages:
            raise Void(f"{look.handled:,} messages handled of {messages:,}:\n{logs(running)}")
    # Few messages, as of a quick run, may all be handled between two looks.
    return first.until(last) if first.handled < last.handled else begin.until(look)


def counts(running: Sequence[Process]) -> list[int]:
    """Returns how many messages each worker has handled."""
    return [_count(one) for one in running]


def _count(one: Process) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", one.port, timeout=30)
    try:
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
    except OSError as error:
        raise Void(f"{one.name} does not say what it handled: {error}\n{one.log_tail()}") from error
    finally:
        connection.close()
    found = HANDLED.search(text)
    return int(float(found[1])) if found else 0


def logs(running: Sequence[Process]) -> str:
    """Returns the ends of what workers wrote."""
    return "\n".join(one.log_tail() for one in running)
