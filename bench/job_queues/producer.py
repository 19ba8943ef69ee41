"""The producer process: ``python -m bench.job_queues.producer MODULE PLAN``, with the plan as JSON.

It prints a line of JSON when the jobs are in the queue and a worker can start. It prints another one after the worker
has done these jobs and further ones, which are sent one by one.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import random
import sys
import time
from collections.abc import Callable
from typing import TypedDict

from bench.job_queues.probe import Receiver
from bench.job_queues.side import Side

BULK_SIZE = 100
"""Jobs per bulk call."""
WARM_UP_SHARE = 0.2
"""Duration of the warm-up, as a share of the time of sending."""
TIMEOUT_SECONDS = 120.0
"""Timeout for a worker to start, and for it to do all jobs, in seconds."""
REST_SECONDS = 0.5
"""Seconds of rest before jobs are sent one by one."""
PAUSE_RANGE_SECONDS = (0.01, 0.21)
"""Min and max seconds between single jobs, at random; the range is the longest poll interval of a system (0.2 s)."""


class Plan(TypedDict):
    """The plan of a run.

    Attributes:
        seconds: Duration of sending, for each way of sending.
        jobs: Number of jobs that wait for the worker.
        singles: Number of jobs that are sent one by one over each connection.
        connections: Number of connections, used one after another; each may reach another process of the server.
    """

    seconds: float
    jobs: int
    singles: int
    connections: int


class Sent(TypedDict):
    """Rates of sending, in jobs per second: one job per call, and in bulk calls (None without them)."""

    one: float
    many: float | None


class Done(TypedDict):
    """Rate of handling, in jobs per second, and the milliseconds from sending to start, by connection."""

    rate: float
    delays: list[list[float]]


def measure_sending(side: Side, plan: Plan) -> Sent:
    """Measures sending one by one, and in bulk after a reset. No worker runs."""
    # No worker runs, so the port does not matter.
    single_rate = calls_per_second(lambda: side.send("counted", 1, 0), plan["seconds"])
    if not side.bulk:
        return {"one": single_rate, "many": None}
    side.reset()
    bulk_rate = calls_per_second(lambda: side.send_many("counted", (1, 0), BULK_SIZE), plan["seconds"])
    return {"one": single_rate, "many": bulk_rate * BULK_SIZE}


def calls_per_second(call: Callable[[], object], seconds: float) -> float:
    """Repeats a call for some seconds, after a shorter warm-up that does not count; returns its rate."""
    count_calls(call, seconds * WARM_UP_SHARE)
    began = time.perf_counter()
    calls = count_calls(call, seconds)
    return calls / (time.perf_counter() - began)


def count_calls(call: Callable[[], object], seconds: float) -> int:
    until, calls = time.perf_counter() + seconds, 0
    while time.perf_counter() < until:
        call()
        calls += 1
    return calls


def fill(side: Side, receiver: Receiver, jobs: int) -> None:
    """Empties the queue and sends the jobs in bulk calls."""
    side.reset()
    for start in range(0, jobs, BULK_SIZE):
        side.send_many("counted", (receiver.port, jobs), min(BULK_SIZE, jobs - start))


def measure_handling(side: Side, receiver: Receiver, jobs: int) -> float:
    """Returns a worker's jobs per second, from the start of the first job until all jobs are acknowledged.

    The jobs are in the queue already (see :func:`fill`). Raises TimeoutError if they do not start, end or become
    acknowledged in time.
    """
    first = receiver.receive(TIMEOUT_SECONDS)
    last = receiver.receive(TIMEOUT_SECONDS)
    until = last + TIMEOUT_SECONDS
    while remaining := side.pending():
        if time.monotonic() > until:
            raise TimeoutError(f"{remaining} jobs were not acknowledged in time")
        time.sleep(0.001)
    return jobs / (time.monotonic() - first)


def measure_delays(side: Side, receiver: Receiver, singles: int) -> list[float]:
    """Returns the milliseconds from sending to start, for jobs that are sent one by one."""
    side.pending()  # opens the connection
    milliseconds = []
    for _ in range(singles):
        time.sleep(random.uniform(*PAUSE_RANGE_SECONDS))
        side.send("timed", receiver.port, time.monotonic())
        milliseconds.append(receiver.receive(TIMEOUT_SECONDS) * 1000)
    return milliseconds


def print_line(value: Sent | Done) -> None:
    print(json.dumps(value), flush=True)


def main(module: str, plan: Plan) -> None:
    connect: Callable[[], Side] = importlib.import_module(module).side
    side = connect()
    side.reset()
    send_rates = measure_sending(side, plan)
    with contextlib.closing(Receiver()) as ear:
        fill(side, ear, plan["jobs"])
        print_line(send_rates)
        job_rate = measure_handling(side, ear, plan["jobs"])
        time.sleep(REST_SECONDS)
        sides = [side, *(connect() for _ in range(plan["connections"] - 1))]
        print_line({"rate": job_rate, "delays": [measure_delays(s, ear, plan["singles"]) for s in sides]})


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
