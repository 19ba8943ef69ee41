"""Compares job queues in one run on one machine; each has a job on disk before the sending call returns."""

from __future__ import annotations

import contextlib
import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from bench.harness import Bench, Skip, Void, measure
from bench.job_queues.producer import BULK_SIZE, Plan
from bench.job_queues.side import FILE, POSTGRES, QUEUE, REDIS, RIVER
from bench.load.traffic import KEY
from bench.results import Report, Row, Verdict, pairwise_ratios
from bench.started import other_python, postgres, redis, river, service
from bench.started.processes import ROOT, Process, inherited_environment, launched

SIDES_PACKAGE = "bench.job_queues."
OURS, OURS_ASYNC, OURS_TWO = "queuey", "queuey, async task", "queuey, 2 processes"
EMBEDDED = "queuey, embedded"
PROCRASTINATE, BARE, RQ, CELERY = "procrastinate", "skip locked", "rq", "celery"
PGQUEUER = "PgQueuer"
HUEY, RIVER_SQLITE = "huey, SQLite", "River, SQLite"
POOLS = {"solo": 1, "prefork": 1, "threads": 8}
"""Pools of Celery's worker, with their concurrency; the pool of threads has as many as Qdo's worker."""
CONCURRENCY = 10
"""Concurrency of procrastinate's worker, and batch size of the bare loop in its second row."""
SINGLES, CONNECTIONS = 104, 8
"""Number of jobs that are sent one by one, and Queuey's connections for them, which reach both service processes."""
NOTES = [
    "One process sends, one works. Handled: a backlog, from the start of the first job until all are acknowledged.",
    "From send to start: jobs alone, 10 to 210 ms apart, with the time of the call that sends.",
    f"Those of queuey go over {CONNECTIONS} connections, so that some reach the process where no claim waits.",
    "What is sent is on disk: Postgres with its defaults; Redis with appendfsync always; queuey with sync full.",
    "So it is with huey and River: their SQLite files have synchronous=FULL.",
    "queuey: qdo work with its defaults. It acknowledges jobs together: after a crash up to 1,000 and more run again.",
    f"procrastinate: an async task, concurrency {CONCURRENCY}.",
    f"{PGQUEUER}: its queue manager with its defaults, an async function.",
    "skip locked: SELECT … FOR UPDATE SKIP LOCKED and DELETE in one transaction; it sleeps 10 ms when there is no job.",
    f"{EMBEDDED}: two processes have the same file open; each looks 4 times a second for what the other has stored.",
    f"{HUEY}: fsync=True, one thread; with 8 it does less. It has no call for many jobs.",
    f"{HUEY}: it removes a job before it runs, so a crash loses the job. The others run it again.",
    f"{RIVER_SQLITE}: 100 workers, as in its examples, which look for jobs once a second: SQLite does not notify them.",
    f"{RIVER_SQLITE}: what sends is a program in Go, which is told of each call by a pipe (about 10 µs).",
    "rq: SimpleWorker, because its usual worker forks for each job, which is far slower; results are not kept.",
    "celery: acks_late; no results, gossip, mingle or heartbeat. It has no call for many jobs.",
]


@dataclass(frozen=True)
class Contender:
    """A system or a configuration of one: a row of each table.

    Attributes:
        module: The adapter that sends, a module of :mod:`bench.job_queues`.
        python: The interpreter of the producer.
        worker: The command of the worker.
        environment: Environment variables with the addresses of the servers.
        fast: Whether the worker does several jobs in one transaction, and so needs a larger backlog.
    """

    module: str
    python: Path
    worker: Sequence[str]
    environment: Mapping[str, str]
    fast: bool = False


@dataclass(frozen=True)
class RoundResult:
    """Results of one round of one contender: rates per second, and milliseconds from send to start."""

    one: float
    many: float | None
    done: float
    p50: float
    p99: float


@measure(
    "jobs",
    "Job queues with equal durability: sends, jobs through one worker, and the time from send to start",
    peers=True,
)
def compare_job_queues(bench: Bench) -> Report:
    """Runs everything on this machine. A system that is not installed is skipped with a note."""
    fast, slow = choose_backlog_size(bench, fast=True), choose_backlog_size(bench, fast=False)
    notes = [*NOTES, f"The backlog: {fast:,} jobs for queuey and for skip locked, 10; {slow:,} for the others."]
    contenders: dict[str, Contender] = {}
    with contextlib.ExitStack() as stack:
        contenders |= {OURS: serve_ours(bench, stack, 1, "jobs"), OURS_TWO: serve_ours(bench, stack, 2, "jobs")}
        contenders[OURS_ASYNC] = with_handler(contenders[OURS], "async_jobs")
        contenders[EMBEDDED] = prepare_ours_embedded(bench)
        for name, add in OTHERS.items():
            try:
                added, versions = add(bench, stack)
                contenders |= added
                notes.append(f"{name}: {versions}.")
            except Skip as reason:
                notes.append(f"SKIPPED {name}: {reason}")
        calls = {name: partial(run_round, bench, contender) for name, contender in contenders.items()}
        samples = bench.interleave(calls, bench.count(3, 1))
    return Report("", "", rows(samples), verdicts(samples), notes)


# The contenders


def serve_ours(bench: Bench, stack: contextlib.ExitStack, processes: int, name: str) -> Contender:
    directory = bench.new_directory("queuey")
    service.prepare(directory, (QUEUE,)).close()
    server = stack.enter_context(service.serve(directory, workers=processes))
    environment = {
        "QUEUEY_URL": f"http://127.0.0.1:{server.port}",
        "QUEUEY_APP": service.APPLICATION,
        "QUEUEY_KEY": KEY,
    }
    return with_handler(Contender("queuey_side", Path(sys.executable), (), environment, fast=True), name)


def prepare_ours_embedded(bench: Bench) -> Contender:
    directory = bench.new_directory("queuey")
    service.prepare(directory, (QUEUE,)).close()
    module, python = "embedded_side", Path(sys.executable)
    return Contender(module, python, [str(python), "-m", SIDES_PACKAGE + module], {FILE: str(directory)}, fast=True)


def with_handler(contender: Contender, name: str) -> Contender:
    url, app, key = contender.environment.values()
    handler = f"{SIDES_PACKAGE}{contender.module}:{name}"
    options = ["--url", url, "--app", app, "--key", key, "--log-level", "warning"]
    command = [sys.executable, "-m", "qdo", "work", handler, *options]
    return replace(contender, worker=command)


ContendersAndVersions = tuple[dict[str, Contender], str]
"""Contenders by name, and the versions of their programs.

Each function that returns this starts the system's server, if it has one, until ``stack`` closes. It raises
:class:`Skip` if a program is not installed.
"""


def start_bare_loops(bench: Bench, stack: contextlib.ExitStack) -> ContendersAndVersions:
    python = other_python.find_interpreter()
    versions = other_python.read_versions(python, ["psycopg"])
    address = stack.enter_context(postgres.serve(bench.new_directory("postgres")))
    module, environment = "skip_locked_side", {POSTGRES: address}
    return {
        f"{BARE}, {limit}": Contender(
            module, python, [str(python), "-m", SIDES_PACKAGE + module, str(limit)], environment, limit > 1
        )
        for limit in (1, CONCURRENCY)
    }, versions


def start_procrastinate(bench: Bench, stack: contextlib.ExitStack) -> ContendersAndVersions:
    """Starts Postgres; applies no schema. The producer creates the tables."""
    python = other_python.find_interpreter()
    versions = other_python.read_versions(python, ["procrastinate", "psycopg"])
    address = stack.enter_context(postgres.serve(bench.new_directory("postgres")))
    module = "procrastinate_side"
    command = [str(python), "-m", "procrastinate", f"--app={SIDES_PACKAGE}{module}.app", "worker"]
    command += ["--queues", QUEUE, "--concurrency", str(CONCURRENCY)]
    return {PROCRASTINATE: Contender(module, python, command, {POSTGRES: address})}, versions


def start_pgqueuer(bench: Bench, stack: contextlib.ExitStack) -> ContendersAndVersions:
    """Starts Postgres; applies no schema. The producer creates the tables."""
    python = other_python.find_interpreter()
    versions = other_python.read_versions(python, ["pgqueuer", "psycopg"])
    address = stack.enter_context(postgres.serve(bench.new_directory("postgres")))
    module = "pgqueuer_side"
    command = [str(python), "-m", SIDES_PACKAGE + module]
    return {PGQUEUER: Contender(module, python, command, {POSTGRES: address})}, versions


def prepare_huey(bench: Bench, stack: contextlib.ExitStack) -> ContendersAndVersions:
    python = other_python.find_interpreter()
    versions = other_python.read_versions(python, ["huey"])
    module, environment = "huey_side", {FILE: str(bench.new_directory("huey") / "jobs.db")}
    command = [str(python), "-m", "huey.bin.huey_consumer", f"{SIDES_PACKAGE}{module}.app", "--quiet"]
    return {HUEY: Contender(module, python, command, environment)}, versions


def prepare_river_on_sqlite(bench: Bench, stack: contextlib.ExitStack) -> ContendersAndVersions:
    program, file = str(river.program()), str(bench.new_directory("river") / "jobs.db")
    environment = {FILE: file, RIVER: program}
    contender = Contender("river_side", Path(sys.executable), [program, "work", file], environment)
    return {RIVER_SQLITE: contender}, river.VERSIONS


def start_rq(bench: Bench, stack: contextlib.ExitStack) -> ContendersAndVersions:
    python = other_python.find_interpreter()
    versions = other_python.read_versions(python, ["rq", "redis"])
    address, _ = stack.enter_context(redis.serve(bench.new_directory("redis")))
    command = [str(python), "-m", "rq.cli", "worker", "--worker-class", "rq.SimpleWorker", "--url", address]
    return {
        RQ: Contender("rq_side", python, [*command, "--logging_level", "WARNING", QUEUE], {REDIS: address})
    }, versions


def start_celery(bench: Bench, stack: contextlib.ExitStack) -> ContendersAndVersions:
    python = other_python.find_interpreter()
    versions = other_python.read_versions(python, ["celery", "redis"])
    address, _ = stack.enter_context(redis.serve(bench.new_directory("redis")))
    command = [str(python), "-m", "celery", "--app", f"{SIDES_PACKAGE}celery_side", "worker", "--loglevel", "WARNING"]
    command += ["--without-gossip", "--without-mingle", "--without-heartbeat"]
    return {
        f"{CELERY}, {pool}": Contender(
            "celery_side", python, [*command, "--pool", pool, "--concurrency", str(size)], {REDIS: address}
        )
        for pool, size in POOLS.items()
    }, versions


OTHERS = {
    BARE: start_bare_loops,
    PROCRASTINATE: start_procrastinate,
    PGQUEUER: start_pgqueuer,
    HUEY: prepare_huey,
    RIVER_SQLITE: prepare_river_on_sqlite,
    RQ: start_rq,
    CELERY: start_celery,
}


# A round


def choose_backlog_size(bench: Bench, *, fast: bool) -> int:
    return bench.count(20_000, 5_000) if fast else bench.count(1000, 100)


def run_round(bench: Bench, contender: Contender) -> RoundResult:
    """Sends jobs without a worker, then runs a worker until all are done.

    Then it measures the delays of single jobs.
    """
    connections = CONNECTIONS if contender.environment.get("QUEUEY_URL") else 1
    plan: Plan = {
        "seconds": bench.duration(1.5, 0.3),
        "jobs": choose_backlog_size(bench, fast=contender.fast),
        "singles": bench.count(SINGLES, 2 * CONNECTIONS) // connections,
        "connections": connections,
    }
    directory = bench.new_directory("round")
    with run_producer(contender, plan, directory) as read_line:
        sent = read_line()
        command, environment = contender.worker, contender.environment
        with launched("worker", command, 0, directory, environment) as worker:
            done = read_line(worker)
    delays = [delay for group in done["delays"] for delay in group]
    return RoundResult(
        one=sent["one"],
        many=sent["many"],
        done=done["rate"],
        p50=statistics.median(delays),
        p99=statistics.quantiles(delays, n=100, method="inclusive")[98],
    )


@contextlib.contextmanager
def run_producer(contender: Contender, plan: Plan, directory: Path) -> Iterator[Callable[..., dict[str, Any]]]:
    """Runs the producer until the block ends; yields a function that reads its next line.

    Raises:
        Void: The producer ended without a line.
    """
    command = [
        str(contender.python),
        "-m",
        SIDES_PACKAGE + "producer",
        SIDES_PACKAGE + contender.module,
        json.dumps(plan),
    ]
    environment = {**inherited_environment(), "PYTHONPATH": str(ROOT), "HOME": str(directory), **contender.environment}
    log = directory / "producer.log"
    with log.open("wb") as errors:
        child = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=errors)

    def read_line(worker: Process | None = None) -> dict[str, Any]:
        """Returns the producer's next line. If it ended, raises Void with the ends of both logs."""
        assert child.stdout is not None
        line = child.stdout.readline()
        if not line:
            worker_log = "" if worker is None else f"\nIts worker:\n{worker.log_tail()}"
            raise Void(f"{contender.module}: {log.read_text('utf-8', 'replace')[-2000:]}{worker_log}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    with child:
        try:
            yield read_line
        finally:
            child.terminate()


# What is shown


FIGURES: Mapping[str, tuple[str, Callable[[RoundResult], float | None]]] = {
    "sends, 1 a call": ("jobs/s", lambda t: t.one),
    f"sends, {BULK_SIZE} a call": ("jobs/s", lambda t: t.many),
    "handled": ("jobs/s", lambda t: t.done),
    "send to start": ("ms p50", lambda t: t.p50),
}


def rows(samples: Mapping[str, Sequence[RoundResult]]) -> list[Row]:
    table_rows = []
    for title, (unit, figure) in FIGURES.items():
        figures = {
            name: [value for run in runs if (value := figure(run)) is not None] for name, runs in samples.items()
        }
        for name, values in figures.items():
            if not values:
                continue
            details = (
                {} if name == OURS else {f"{OURS} / it": statistics.median(pairwise_ratios(figures[OURS], values))}
            )
            if title == "send to start":
                details["p99 ms"] = statistics.median(t.p99 for t in samples[name])
            table_rows.append(Row(f"{title}: {name}", values, unit, details))
    return table_rows


def verdicts(samples: Mapping[str, Sequence[RoundResult]]) -> list[Verdict]:
    """Compares :data:`OURS` in jobs/s with procrastinate and with the fastest of Celery's pools.

    The times from send to start are compared with a goal of 15 ms.
    """
    goals = {name: 2.0 for name in samples if name == PROCRASTINATE}
    if celery := [name for name in samples if name.startswith(CELERY)]:
        goals[max(celery, key=lambda name: statistics.median(t.done for t in samples[name]))] = 1.0
    rate_verdicts = [
        Verdict(
            f"jobs a second: {OURS} / {name}",
            pairwise_ratios([t.done for t in samples[OURS]], [t.done for t in samples[name]]),
            goal=goal,
        )
        for name, goal in goals.items()
    ]
    return rate_verdicts + [
        Verdict(f"from send to start: {name}", [t.p50 for t in samples[name]], "ms p50", goal=15, better="lower")
        for name in (OURS, OURS_TWO)
    ]
