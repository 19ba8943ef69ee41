"""What the process itself costs: memory, start-up."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from bench.harness import Bench, Void, measure
from bench.load import generator as load
from bench.load import traffic
from bench.load.traffic import Job
from bench.results import Report, Row, Verdict, paired
from bench.started import service
from bench.started.processes import Process


@measure("memory", "Memory of the service at rest, and its growth when very many queues are touched")
def memory(bench: Bench) -> Report:
    """Reads every queue once and posts to every tenth; the queues are there before the service starts."""
    count = bench.size(1_000_000, 5_000)
    directory = bench.fresh("memory")
    service.prepare(directory).close()
    service.fill_queues(directory, count)
    bench.say(f"{count:,} queues are there")
    path = f"{service.BASE}/q{load.COUNTER.decode()}"
    with service.serve(directory) as server:
        traffic.run(server, traffic.gets([f"{service.BASE}/q0000000"]), seconds=1, count=100)
        parts = server.memory()
        rest = sum(parts)
        reads = touch(server, Job([traffic.request("GET", path)], 200, numbered=count))
        after_reads = sum(server.memory())
        post = traffic.request("POST", path, traffic.bodies(1)[0], {"Content-Type": "text/plain"})
        posts = touch(server, Job([post], 201, numbered=count // 10))
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


def touch(server: Process, job: Job) -> traffic.Sample:
    """Does a numbered job once with every number."""
    return traffic.run(server, job, seconds=200, warm=0, count=job.numbered)


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
    samples = bench.interleave(calls, bench.size(21, 1))
    verdicts = [
        Verdict(f"{ours} / {theirs}", paired(samples[ours], samples[theirs]), goal=goal, better="lower")
        for ours, theirs, goal in (("import queuey.client", "import httpx2", 2), ("queuey --help", "import typer", 3))
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
