"""Measures the process itself: memory, start-up time, and an embedded service."""

from __future__ import annotations

import contextlib
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench.harness import Bench, Skip, Void, measure
from bench.load import generator as load
from bench.load import traffic
from bench.load.traffic import KEY, Job
from bench.measures import before
from bench.results import Report, Row, Verdict, pairwise_ratios
from bench.started import service
from bench.started.processes import ROOT, Process, inherited_environment


@measure("memory", "Memory of the service at rest, and its growth when very many queues are touched")
def measure_memory(bench: Bench) -> Report:
    """Reads every queue once and posts to every tenth. The queues exist before the service starts."""
    count = bench.count(1_000_000, 5_000)
    directory = bench.new_directory("memory")
    service.prepare(directory).close()
    service.fill_queues(directory, count)
    bench.print_progress(f"{count:,} queues are there")
    path = f"{service.BASE}/q{load.COUNTER.decode()}"
    with service.serve(directory) as server:
        traffic.run(server, traffic.gets([f"{service.BASE}/q0000000"]), seconds=1, count=100)
        parts = server.memory()
        rest = sum(parts)
        reads = send_each_number(server, Job([traffic.request("GET", path)], 200, numbered=count))
        after_reads = sum(server.memory())
        post = traffic.request("POST", path, traffic.bodies(1)[0], {"Content-Type": "text/plain"})
        posts = send_each_number(server, Job([post], 201, numbered=count // 10))
        after_posts = sum(server.memory())
    rows = [
        Row("at rest, all processes", [rest], "MB"),
        Row("at rest, the worker alone", parts[:1], "MB"),
        Row(f"after reading {count:,} queues", [after_reads], "MB", {"reads/s": reads.rate}),
        Row(f"after posting to {count // 10:,} more times", [after_posts], "MB", {"posts/s": posts.rate}),
    ]
    growth = max(after_reads, after_posts) - rest
    verdicts = [
        Verdict("at rest, all processes", [rest], "MB", goal=150, better="lower"),
        Verdict(f"growth over {count:,} queues", [growth], "MB", goal=100, better="lower"),
    ]
    return Report("memory", "", rows, verdicts, ["Proportional set size (PSS); 10^6 bytes to the MB."])


def send_each_number(server: Process, job: Job) -> traffic.Sample:
    return traffic.run(server, job, seconds=200, warm=0, count=job.numbered)


COMMANDS = {
    "import queuey.client": [sys.executable, "-c", "import queuey.client"],
    "import httpx2": [sys.executable, "-c", "import httpx2"],
    "queuey --help": [str(Path(sys.executable).parent / "queuey"), "--help"],
    "import typer": [sys.executable, "-c", "import typer"],
    "nothing": [sys.executable, "-c", ""],
}


@measure("imports", "Start-up of the client and of the command line, against the libraries they stand on")
def measure_start_up(bench: Bench) -> Report:
    for command in COMMANDS.values():
        time_command(command)
    calls = {name: partial(time_command, command) for name, command in COMMANDS.items()}
    samples = bench.interleave(calls, bench.count(21, 1))
    verdicts = [
        Verdict(f"{ours} / {theirs}", pairwise_ratios(samples[ours], samples[theirs]), goal=goal, better="lower")
        for ours, theirs, goal in (("import queuey.client", "import httpx2", 2), ("queuey --help", "import typer", 3))
    ]
    return Report("imports", "", [Row(name, values, "ms") for name, values in samples.items()], verdicts)


def time_command(command: Sequence[str]) -> float:
    """Returns the duration of a command in milliseconds.

    Raises:
        Void: The command failed.
    """
    began = time.perf_counter()
    process = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False)
    milliseconds = (time.perf_counter() - began) * 1000
    if process.returncode:
        raise Void(f"{' '.join(command)}: {process.stderr.decode()[-500:]}")
    return milliseconds


HTTP, HTTP_BEFORE, EMBEDDED, STORE, INSERT = "HTTP", "HTTP, before", "embedded", "the store alone", "a bare insert"
CPU_GOAL, RATE_GOAL, INSERT_GOAL = 0.35, 3.0, 1.3


@dataclass(frozen=True)
class Sender:
    """A process that sends messages one by one, and its service if that is another process."""

    child: subprocess.Popen[str]
    server: Process | None = None

    def time_sends(self, count: int) -> tuple[float, float]:
        """Returns the microseconds per send, and the CPU microseconds of both processes per send.

        Raises:
            Void: The process ended.
        """
        assert self.child.stdin is not None
        assert self.child.stdout is not None
        cpu_before = self.server.cpu_seconds() if self.server is not None else 0.0
        self.child.stdin.write(f"{count}\n")
        self.child.stdin.flush()
        line = self.child.stdout.readline()
        if not line:
            raise Void("the sending process ended")
        seconds, cpu = json.loads(line)
        if self.server is not None:
            cpu += self.server.cpu_seconds() - cpu_before
        return seconds * 1e6 / count, cpu * 1e6 / count


@measure("embedded", "A send inside the program: beside HTTP, the store alone, and a row that SQLite inserts")
def measure_embedded_sends(bench: Bench) -> Report:
    """One thread sends messages of 200 B. With ``BENCH_BEFORE``, HTTP is also measured with the other checkout."""
    rows: list[Row] = []
    verdicts: list[Verdict] = []
    for sync in ("normal", "full"):
        with contextlib.ExitStack() as stack:
            senders = {name: stack.enter_context(side) for name, side in _prepare_senders(bench, stack, sync).items()}
            calls = {name: partial(sender.time_sends, bench.count(500, 20)) for name, sender in senders.items()}
            for call in calls.values():
                call()
            samples = bench.interleave(calls, bench.count(15, 1))
        times = {name: [run[0] for run in runs] for name, runs in samples.items()}
        cpu = {name: [run[1] for run in runs] for name, runs in samples.items()}
        for name, values in times.items():
            details = {"least": min(values), "CPU µs": statistics.median(cpu[name]), "least CPU µs": min(cpu[name])}
            rows.append(Row(f"sync {sync}: {name}", values, "µs/send", details))
        base = HTTP_BEFORE if HTTP_BEFORE in times else HTTP
        for other in (base, STORE, INSERT):
            goal = INSERT_GOAL if (other, sync) == (INSERT, "full") else None
            figure = pairwise_ratios(times[EMBEDDED], times[other])
            verdicts.append(Verdict(f"sync {sync}: time, embedded / {other}", figure, goal=goal, better="lower"))
        is_goal = base == HTTP_BEFORE and sync == "normal"
        verdicts += [
            Verdict(
                f"sync {sync}: CPU, embedded / {base}",
                pairwise_ratios(cpu[EMBEDDED], cpu[base]),
                goal=CPU_GOAL if is_goal else None,
                better="lower",
            ),
            Verdict(
                f"sync {sync}: sends a second, embedded / {base}",
                pairwise_ratios(times[base], times[EMBEDDED]),
                goal=RATE_GOAL if is_goal else None,
            ),
        ]
    return Report("", "", rows, verdicts, ["CPU: of the process that sends, and of the service where that is another."])


def _prepare_senders(
    bench: Bench, stack: contextlib.ExitStack, sync: str
) -> Mapping[str, contextlib.AbstractContextManager[Sender]]:
    """Returns the sides by name; HTTP also with the other checkout, if there is one. Their services run already."""
    trees = {HTTP: ROOT}
    with contextlib.suppress(Skip):
        trees[HTTP_BEFORE] = before.find_both_checkouts()["before"]
    senders = {}
    for name, tree in trees.items():
        directory = before.prepare_store(bench, tree, "http")
        server = stack.enter_context(service.serve(directory, sync=sync, environment={"PYTHONPATH": str(tree)}))
        senders[name] = _start_sender("over_http", f"http://127.0.0.1:{server.port}", sync, tree, server)
    senders[EMBEDDED] = _start_sender("embedded", str(bench.new_directory("embedded") / "jobs.db"), sync)
    senders[STORE] = _start_sender("store", str(bench.new_directory("store")), sync)
    senders[INSERT] = _start_sender("insert", str(bench.new_directory("insert") / "rows.db"), sync)
    return senders


@contextlib.contextmanager
def _start_sender(
    side: str, place: str, sync: str, tree: Path = ROOT, server: Process | None = None
) -> Iterator[Sender]:
    command = [sys.executable, str(ROOT / "bench" / "send_side.py"), side, place, sync]
    environment = {**inherited_environment(), "PYTHONPATH": str(tree), "QUEUEY_KEY": KEY}
    with subprocess.Popen(
        command, cwd=tree, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        try:
            yield Sender(child, server)
        finally:
            child.terminate()
