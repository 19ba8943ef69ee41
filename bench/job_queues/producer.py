"""The one process that sends: ``python -m bench.job_queues.producer MODULE PLAN``, with the plan as JSON.

Prints a line of JSON when jobs wait for a worker, and another when it has done them, and further ones one by one.
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

from bench.job_queues.probe import Ear
from bench.job_queues.side import Side

MANY = 100
"""Jobs of a call for many."""
WARM = 0.2
"""Part of the time of sending that is spent on it before."""
PATIENCE = 120.0
"""Seconds in which a worker must start, and do all jobs."""
REST = 0.5
"""Seconds before jobs are sent one by one."""
PAUSES = (0.01, 0.21)
"""Seconds between two of these, at random: as long as the longest rhythm, of 0.2 s, in which one of them looks."""


class Plan(TypedDict):
    """What is measured.

    Attributes:
        seconds: Of sending, for each way to send.
        jobs: Wait for the worker.
        singles: Are sent one by one over each connection.
        connections: One after another, each of which may reach another process of a server.
    """

    seconds: float
    jobs: int
    singles: int
    connections: int


class Sent(TypedDict):
    """Jobs a second that were sent: one a call, and by calls for many."""

    one: float
    many: float | None


class Done(TypedDict):
    """Jobs a second that were done, and milliseconds from sending to start by connection."""

    rate: float
    delays: list[list[float]]


def sent(side: Side, plan: Plan) -> Sent:
    """Sends for a while, both ways."""
    # No worker is there, so the port does not matter.
    one = pace(lambda: side.send("counted", 1, 0), plan["seconds"])
    if not side.bulk:
        return {"one": one, "many": None}
    side.reset()
    many = pace(lambda: side.send_many("counted", (1, 0), MANY), plan["seconds"])
    return {"one": one, "many": many * MANY}


def pace(call: Callable[[], object], seconds: float) -> float:
    """Returns how often a call can be made in a second."""
    calls_in(call, seconds * WARM)
    began = time.perf_counter()
    calls = calls_in(call, seconds)
    return calls / (time.perf_counter() - began)


def calls_in(call: Callable[[], object], seconds: float) -> int:
    """Makes a call again and again; returns how often."""
    until, calls = time.perf_counter() + seconds, 0
    while time.perf_counter() < until:
        call()
        calls += 1
    return calls


def fill(side: Side, ear: Ear, jobs: int) -> None:
    """Sends the jobs that wait for the worker, and no others."""
    side.reset()
    for at in range(0, jobs, MANY):
        side.send_many("counted", (ear.port, jobs), min(MANY, jobs - at))


def rate(side: Side, ear: Ear, jobs: int) -> float:
    """Returns the jobs a second of a worker: from the start of the first until all are acknowledged."""
    first = ear.hear(PATIENCE)
    last = ear.hear(PATIENCE)
    until = last + PATIENCE
    while left := side.pending():
        if time.monotonic() > until:
            raise TimeoutError(f"{left} jobs are not acknowledged")
        time.sleep(0.001)
    return jobs / (time.monotonic() - first)


def delays(side: Side, ear: Ear, singles: int) -> list[float]:
    """Returns the milliseconds from sending to start of jobs that are alone."""
    side.pending()  # Connects.
    found = []
    for _ in range(singles):
        time.sleep(random.uniform(*PAUSES))
        side.send("timed", ear.port, time.monotonic())
        found.append(ear.hear(PATIENCE) * 1000)
    return found


def say(value: Sent | Done) -> None:
    """Prints a line at once."""
    print(json.dumps(value), flush=True)


def main(module: str, plan: Plan) -> None:
    """Does what the plan says."""
    connected: Callable[[], Side] = importlib.import_module(module).side
    side = connected()
    side.reset()
    found = sent(side, plan)
    with contextlib.closing(Ear()) as ear:
        fill(side, ear, plan["jobs"])
        say(found)
        speed = rate(side, ear, plan["jobs"])
        time.sleep(REST)
        sides = [side, *(connected() for _ in range(plan["connections"] - 1))]
        say({"rate": speed, "delays": [delays(one, ear, plan["singles"]) for one in sides]})


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
