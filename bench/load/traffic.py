"""Builds requests for the load generators, runs them, and sums up their results."""

from __future__ import annotations

import base64
import json
import random
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from bench.harness import Void
from bench.load import generator as load
from bench.results import Row
from bench.started.processes import Process

KEY = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
"""The API key of every server that the bench starts; it is not used anywhere else."""

BODY_BYTES = 200


@dataclass(frozen=True)
class Sample:
    """One run against one server.

    Attributes:
        rate: Messages per second.
        p50, p99, longest: Latency of a request in milliseconds.
        cpu: CPU microseconds of the server per message, warm-up included.
        backend: CPU microseconds per message of the servers behind it; None if they were not measured.
        answers: Number of answers in the measured phase; 0, like the other figures, if the side is not a server.
        size: Mean size of an answer in bytes, header included.
    """

    rate: float
    p50: float = 0.0
    p99: float = 0.0
    longest: float = 0.0
    cpu: float = 0.0
    answers: int = 0
    size: float = 0.0
    backend: float | None = None


class Metered(Protocol):
    """Processes whose CPU time can be read."""

    def cpu_seconds(self) -> float:
        """Returns the user and system CPU seconds so far."""


def bodies(count: int, *, size: int = BODY_BYTES, seed: int = 1) -> list[str]:
    """Returns ``count`` different message bodies of ``size`` characters of base64, the same for the same seed."""
    rng = random.Random(seed)
    return [base64.b64encode(rng.randbytes(size)).decode()[:size] for _ in range(count)]


def request(method: str, path: str, body: str = "", headers: Mapping[str, str] | None = None) -> str:
    """Returns a whole HTTP/1.1 request for the generator, with the key; only POST and PUT have a length."""
    lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", f"Authorization: Application {KEY}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    if method in {"POST", "PUT"}:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", body])


@dataclass(frozen=True)
class Job:
    """The requests to send in turn, and the expected answers.

    Attributes:
        requests: See :func:`request`.
        status: The status of every answer.
        messages: Messages per request or answer.
        numbered: If not zero, :data:`load.COUNTER` is replaced by the number of the request modulo this.
        order: If not empty, these numbers replace it in turn.
    """

    requests: Sequence[str]
    status: int
    messages: int = 1
    numbered: int = 0
    order: Sequence[int] = ()


def posts_of_one(path: str, messages: Sequence[str]) -> Job:
    return Job([request("POST", path, message, {"Content-Type": "text/plain"}) for message in messages], 201)


def gets(paths: Sequence[str], messages: int = 1) -> Job:
    return Job([request("GET", path) for path in paths], 200, messages)


def posts_of_many(path: str, messages: Sequence[str], batch: int) -> Job:
    requests = [
        request(
            "POST",
            path,
            json.dumps({"messages": [{"body": body} for body in messages[at : at + batch]]}),
            {"Content-Type": "application/json"},
        )
        for at in range(0, len(messages), batch)
    ]
    return Job(requests, 201, batch)


def run(
    server: Process,
    job: Job,
    *,
    seconds: float,
    connections: int = 64,
    warm: float = 0.3,
    count: int = 0,
    backend: Metered | None = None,
) -> Sample:
    """Runs a job in the load generator, which is a process of its own.

    Args:
        server: Target; its CPU time is read before and after the run.
        job: The requests.
        seconds: Max duration of the measured phase.
        connections: Number of open connections, each with one request in flight.
        warm: Duration of the warm-up in seconds.
        count: If not zero, the run ends after this many answers.
        backend: Further processes whose CPU time is read.

    Raises:
        Void: An answer had another status, or no answer came.
    """
    plan: load.Plan = {
        "port": server.port,
        "connections": connections,
        "requests": list(job.requests),
        "status": job.status,
        "warm": warm,
        "seconds": seconds,
        "count": count,
        "numbered": len(job.order) or job.numbered,
        "order": list(job.order),
    }
    result, spent = run_generator(server, "bench.load.generator", plan, seconds + warm + 60, backend)
    return make_sample(result, spent, job.messages, result["total"] * job.messages)


def run_generator(
    server: Process, module: str, plan: object, seconds: float, backend: Metered | None
) -> tuple[load.Result, list[float]]:
    """Runs a plan in a generator; returns its result and the CPU seconds of the server and of the backend.

    Raises:
        Void: An answer had another status, or no answer came.
    """
    metered: list[Metered] = [server] if backend is None else [server, backend]
    before = [m.cpu_seconds() for m in metered]
    command = [sys.executable, "-m", module]
    done = subprocess.run(command, input=json.dumps(plan), capture_output=True, text=True, timeout=seconds, check=False)
    spent = [m.cpu_seconds() - begin for m, begin in zip(metered, before, strict=True)]
    result: load.Result = json.loads(done.stdout or '{"errors": 1}')
    if result["errors"] or not result["answers"]:
        raise Void(f"{server.name}: {result.get('error') or done.stderr or 'no answers'}\n{server.log_tail()}")
    return result, spent


def make_sample(result: load.Result, spent: Sequence[float], each: int, messages: int) -> Sample:
    """Returns the sample of a generator's result.

    Args:
        result: Result of the generator.
        spent: CPU seconds of the server, and of the backend if it was measured.
        each: Messages per request.
        messages: Number of messages that the CPU time was spent on.
    """
    cpu, *behind = (seconds * 1e6 / messages for seconds in spent)
    return Sample(
        rate=result["answers"] * each / result["seconds"],
        p50=result["p50"],
        p99=result["p99"],
        longest=result["longest"],
        cpu=cpu,
        answers=result["answers"],
        size=result["received"] / result["answers"],
        backend=behind[0] if behind else None,
    )


def row(name: str, samples: Sequence[Sample], unit: str = "messages/s") -> Row:
    """Returns a row of the rates, with median latencies and CPU as details, except figures that were not measured."""
    medians = {
        "p50 ms": statistics.median(sample.p50 for sample in samples),
        "p99 ms": statistics.median(sample.p99 for sample in samples),
        "server CPU us/message": statistics.median(sample.cpu for sample in samples),
    }
    details = {name: value for name, value in medians.items() if value}
    behind = [sample.backend for sample in samples if sample.backend is not None]
    if behind:
        details["behind it us/message"] = statistics.median(behind)
    return Row(name, [sample.rate for sample in samples], unit, details)


def rates(samples: Sequence[Sample]) -> list[float]:
    return [sample.rate for sample in samples]
