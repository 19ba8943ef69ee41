"""What the process itself costs: CPU per request, memory, start-up."""

from __future__ import annotations

import io
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from queuey.errors import Outcome
from queuey.ids import Position
from queuey.messages import NewMessage, Queue
from queuey.metrics import Metrics
from queuey.storage.sqlite import SqliteOptions, SqliteStore
from queuey.web import make_app
from queuey.web.answers import Answer, Environ
from queuey.web.later import AT_ONCE, Later
from tests.bench import load, service, traffic
from tests.bench.harness import Bench, Void, measure
from tests.bench.opponents import bare
from tests.bench.processes import Process
from tests.bench.results import Report, Row, Verdict, paired
from tests.bench.traffic import Job

REQUESTS = 20_000


class InstantStore(SqliteStore):
    """A store double that gives a position at once, so that what is left of a POST is the service's own work."""

    position: Position = (139_000_000_000_000_000, 1)

    def append(self, queue: Queue, items: Sequence[NewMessage], *, after: Position | None = None) -> list[Position]:
        """Stores nothing."""
        return [self.position] * len(items)

    def begin_append(
        self,
        queue: Queue,
        items: Sequence[NewMessage],
        done: Callable[[list[Position] | None, BaseException | None], None],
        *,
        after: Position | None = None,
    ) -> Callable[[], Outcome]:
        """Stores nothing and says so at once."""
        done([self.position] * len(items), None)
        return lambda: "none"


@measure("cpu", "CPU of a POST in process without a store, over a bare WSGI callable")
def cpu(bench: Bench) -> Report:
    """Calls both with the environment that the server gives them, in one thread.

    The service is called in both ways in which it serves a POST: at once, in the server's own thread, as it does
    whenever nothing has to be waited for, and as a plain WSGI application.
    """
    directory = bench.fresh("cpu")
    service.prepare(directory).close()
    store = InstantStore(directory, SqliteOptions(sweep_interval=None))
    try:
        app = make_app(store, metrics=Metrics())
        ways = {
            "queuey, at once": partial(at_once, app),
            "queuey, as WSGI": partial(as_wsgi, app),
            "bare": partial(as_wsgi, bare.app),
        }
        texts = [text.encode() for text in traffic.bodies(64)]
        count = bench.size(REQUESTS, 4000)
        calls = {name: partial(microseconds, way, texts, count) for name, way in ways.items()}
        for way in reversed(ways.values()):
            microseconds(way, texts, 2000)
        samples = bench.interleave(calls, bench.size(15, 5))
    finally:
        store.close()
    rows = [Row(name, values, "us") for name, values in samples.items()]
    verdicts = []
    for name in ("queuey, at once", "queuey, as WSGI"):
        over = [ours - least for ours, least in zip(samples[name], samples["bare"], strict=True)]
        verdicts.append(Verdict(f"{name} - bare", over, "us", floor=15, aim=8, better="lower"))
    return Report("cpu", "", rows, verdicts)


def microseconds(way: Callable[[Environ], int], texts: Sequence[bytes], count: int) -> float:
    """Returns the CPU time of one POST, the mean of ``count``.

    Raises:
        Void: An answer was not 201.
    """
    wrong = 0
    began = time.process_time_ns()
    for number in range(count):
        wrong += way({**ENVIRON, "wsgi.input": io.BytesIO(texts[number % len(texts)])}) != 201
    spent = time.process_time_ns() - began
    if wrong:
        raise Void(f"{wrong} answers were not 201")
    return spent / count / 1000


def as_wsgi(app: Callable[..., Any], environ: Environ) -> int:
    """Does one request and returns its status."""
    status = 0

    def start_response(line: str, headers: object, error: object = None) -> None:
        nonlocal status
        status = int(line[:3])

    for _ in app(environ, start_response):
        pass
    return status


def at_once(app: Callable[..., Any], environ: Environ) -> int:
    """Does one request as the gateway does when the store need not be waited for; returns its status.

    Raises:
        Void: The service answered by itself instead.
    """
    environ[AT_ONCE] = True
    later = app(environ, lambda *_: None)
    if not isinstance(later, Later):
        raise Void("the service did not leave the waiting to the server")
    results: list[tuple[Any, BaseException | None]] = []
    later.begin(lambda value, error: results.append((value, error)))
    answer: Answer = later.finish(*results[0])
    return answer.status


ENVIRON: Environ = {
    "GATEWAY_INTERFACE": "CGI/1.1",
    "SERVER_PROTOCOL": "HTTP/1.1",
    "SERVER_SOFTWARE": "Granian",
    "SERVER_NAME": "127.0.0.1",
    "SERVER_PORT": "5000",
    "REMOTE_ADDR": "127.0.0.1",
    "REQUEST_METHOD": "POST",
    "SCRIPT_NAME": "",
    "PATH_INFO": f"{service.BASE}/bench",
    "QUERY_STRING": "",
    "CONTENT_TYPE": "text/plain",
    "CONTENT_LENGTH": str(traffic.BODY_BYTES),
    "HTTP_HOST": "127.0.0.1",
    "HTTP_AUTHORIZATION": f"Application {traffic.KEY}",
    "wsgi.version": (1, 0),
    "wsgi.url_scheme": "http",
    "wsgi.errors": sys.stderr,
    "wsgi.multithread": True,
    "wsgi.multiprocess": False,
    "wsgi.run_once": False,
    "wsgi.input_terminated": True,
}


@measure("memory", "Memory of the service at rest, and its growth when very many queues are touched")
def memory(bench: Bench) -> Report:
    """Reads every queue once and posts to every tenth; the queues are there before the service starts."""
    count = bench.size(1_000_000, 20_000)
    directory = bench.fresh("memory")
    service.prepare(directory).close()
    service.fill_queues(directory, count)
    bench.say(f"{count:,} queues are there")
    path = f"{service.BASE}/q{load.COUNTER.decode()}"
    with service.serve(directory) as server:
        traffic.run(server, traffic.gets([f"{service.BASE}/q0000000"]), seconds=1, count=100)
        parts = server.memory()
        rest = sum(parts)
        reads = touch(server, Job([traffic.request("GET", path)], 200, numbered=True), count)
        after_reads = sum(server.memory())
        post = traffic.request("POST", path, traffic.bodies(1)[0], {"Content-Type": "text/plain"})
        posts = touch(server, Job([post], 201, numbered=True), count // 10)
        after_posts = sum(server.memory())
    rows = [
        Row("at rest, all processes", [rest], "MB"),
        Row("at rest, the worker alone", parts[:1], "MB"),
        Row(f"after reading {count:,} queues", [after_reads], "MB", {"reads/s": reads.rate}),
        Row(f"after posting to {count // 10:,} more times", [after_posts], "MB", {"posts/s": posts.rate}),
    ]
    growth = max(after_reads, after_posts) - rest
    verdicts = [
        Verdict("at rest, all processes", [rest], "MB", floor=150, better="lower"),
        Verdict(f"growth over {count:,} queues", [growth], "MB", floor=100, better="lower"),
    ]
    return Report("memory", "", rows, verdicts, ["Proportional set size (PSS); 10^6 bytes to the MB."])


def touch(server: Process, job: Job, count: int) -> traffic.Sample:
    """Does a numbered job with every number below ``count``."""
    return traffic.run(server, job, seconds=200, warm=0, count=count)


COMMANDS = {
    "import queuey.client": [sys.executable, "-c", "import queuey.client"],
    "import httpx2": [sys.executable, "-c", "import httpx2"],
    "queuey --help": [str(Path(sys.executable).parent / "queuey"), "--help"],
    "import typer": [sys.executable, "-c", "import typer"],
    "nothing": [sys.executable, "-c", ""],
}


@measure("imports", "Start-up of the client and of the command line, against the libraries they stand on")
def imports(bench: Bench) -> Report:
    """Whole processes, from start to end."""
    for command in COMMANDS.values():
        wall(command)
    calls = {name: partial(wall, command) for name, command in COMMANDS.items()}
    samples = bench.interleave(calls, bench.size(21, 5))
    verdicts = [
        Verdict(f"{ours} / {theirs}", paired(samples[ours], samples[theirs]), floor=floor, better="lower")
        for ours, theirs, floor in (("import queuey.client", "import httpx2", 2), ("queuey --help", "import typer", 3))
    ]
    return Report("imports", "", [Row(name, values, "ms") for name, values in samples.items()], verdicts)


def wall(command: Sequence[str]) -> float:
    """Returns the milliseconds that a command takes.

    Raises:
        Void: It fails.
    """
    began = time.perf_counter()
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False)
    spent = (time.perf_counter() - began) * 1000
    if done.returncode:
        raise Void(f"{' '.join(command)}: {done.stderr.decode()[-500:]}")
    return spent
