"""A caller with one connection that posts, reads and claims one message in turn, in its own process.

Run it as ``python -m bench.load.modest``; it reads one JSON plan from standard input and writes the times of each job
as JSON. A claim acknowledges the messages of the previous claim. Any unexpected status ends the run.
"""

from __future__ import annotations

import gc
import json
import re
import socket
import sys
import time
from typing import TypedDict

from bench.load.generator import BadAnswer, body_length

WARM_UP_SECONDS = 0.3
"""Duration of the warm-up in seconds."""


class ModestPlan(TypedDict):
    """The plan: ``jobs`` maps names to a request and its expected status; they run in turn for ``seconds``.

    The request of the job ``claim`` lacks its length and body, which are made from the receipts of the previous claim.
    """

    port: int
    seconds: float
    jobs: dict[str, tuple[str, int]]


class Times(TypedDict):
    """Times of one job, in milliseconds per request."""

    answers: int
    p50: float
    p99: float
    longest: float


class SingleConnectionCaller:
    """Runs the jobs of a plan in turn over one connection, and records their times."""

    def __init__(self, plan: ModestPlan) -> None:
        self.plan = plan
        self.sock = socket.create_connection(("127.0.0.1", plan["port"]), timeout=60)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.receipts: list[str] = []
        self.times: dict[str, list[int]] = {name: [] for name in plan["jobs"]}

    def ask(self, request: bytes, status: int) -> str:
        """Sends a request; returns the answer's body. Raises BadAnswer for another status or a closed connection."""
        self.sock.sendall(request)
        data = b""
        while (end := data.find(b"\r\n\r\n")) < 0 or len(data) < end + 4 + body_length(data[:end]):
            piece = self.sock.recv(262144)
            if not piece:
                raise BadAnswer("connection closed")
            data += piece
        if int(data[9:12]) != status:
            raise BadAnswer(data[:600].decode("latin-1"))
        return data[end + 4 :].decode()

    def run_jobs(self) -> None:
        """Runs each job once and records its time. A claim acknowledges the messages of the last one.

        Raises BadAnswer if a claim gets no message or a receipt was superseded.
        """
        for name, (text, status) in self.plan["jobs"].items():
            request = text
            if name == "claim":
                body = json.dumps({"acknowledge": self.receipts})
                request = f"{text}Content-Length: {len(body)}\r\n\r\n{body}"
            began = time.perf_counter_ns()
            answer = self.ask(request.encode("latin-1"), status)
            self.times[name].append(time.perf_counter_ns() - began)
            if name == "claim":
                self.receipts = re.findall('"receipt":"([^"]+)","deliveries"', answer)
                if not self.receipts or '"superseded"' in answer:
                    raise BadAnswer(answer[:600])

    def run(self) -> dict[str, Times]:
        """Runs all jobs in turn: ``WARM_UP_SECONDS`` unrecorded, then for the plan's time, and at least once."""
        warm = time.monotonic() + WARM_UP_SECONDS
        while time.monotonic() < warm:
            self.run_jobs()
        for times in self.times.values():
            times.clear()
        until = time.monotonic() + self.plan["seconds"]
        while not all(self.times.values()) or time.monotonic() < until:
            self.run_jobs()
        self.sock.close()
        return {name: summarize(sorted(times)) for name, times in self.times.items()}


def summarize(ordered: list[int]) -> Times:
    quantiles = [ordered[min(int(len(ordered) * share), len(ordered) - 1)] / 1e6 for share in (0.5, 0.99, 1)]
    return {"answers": len(ordered), "p50": quantiles[0], "p99": quantiles[1], "longest": quantiles[2]}


def main() -> None:
    plan: ModestPlan = json.load(sys.stdin)
    gc.disable()
    try:
        print(json.dumps(SingleConnectionCaller(plan).run()))
    except (BadAnswer, OSError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
