"""Starts the Go program that generates load on other queues and logs: ``bench/peers``."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bench.harness import Void
from bench.load import traffic
from bench.load.traffic import Metered, Sample
from bench.started import go_programs
from bench.started.processes import ROOT

MODULES = {
    "github.com/redis/go-redis/v9": "9.23.0",
    "github.com/nats-io/nats.go": "1.55.0",
    "github.com/rabbitmq/amqp091-go": "1.16.0",
    "github.com/twmb/franz-go": "1.22.3",
    "github.com/twmb/franz-go/pkg/kadm": "1.20.0",
    "github.com/jackc/pgx/v5": "5.13.0",
}
"""The Go clients and their versions."""
Operation = Literal["post", "read", "job"]


@dataclass(frozen=True)
class Peer:
    """A server under load.

    Attributes:
        program: Path of the load generator (:func:`program`).
        kind: The system, as the load generator names it.
        address: Address of the server.
        process: The server process whose CPU is measured; None if it is unknown.
    """

    program: Path
    kind: str
    address: str
    process: Metered | None = None

    def load(
        self, operation: Operation, *, callers: int, seconds: float, batch: int = 1, count: int = 0, queues: int = 1
    ) -> Sample:
        """Runs callers concurrently; each caller makes one call after the other.

        Args:
            operation: Post, read a hundred messages, or claim and acknowledge one message.
            callers: Number of callers.
            seconds: Max duration.
            batch: Messages per post.
            count: If not zero, the run ends after this many messages.
            queues: Number of queues, of which each post is to any one; only Postgres has more than one.

        Raises:
            Void: A call failed, or no call ended.
        """
        plan = {
            "Address": self.address,
            "Callers": callers,
            "Batch": batch,
            "Bodies": traffic.bodies(1000),
            "Seconds": seconds,
            "Count": count,
            "Queues": queues,
        }
        cpu_before = self.process.cpu_seconds() if self.process else 0.0
        process = subprocess.run(
            [str(self.program), self.kind, operation],
            input=json.dumps(plan),
            capture_output=True,
            text=True,
            timeout=seconds + 120,
            check=False,
        )
        if process.returncode:
            raise Void(f"{self.kind}, {operation}: {process.stderr.strip()[-1000:]}")
        cpu_seconds = self.process.cpu_seconds() - cpu_before if self.process else 0.0
        result = json.loads(process.stdout)
        return Sample(
            rate=result["messages"] / result["seconds"],
            p50=result["p50"],
            p99=result["p99"],
            longest=result["longest"],
            cpu=cpu_seconds * 1e6 / max(1, result["messages"]),
            answers=result["messages"],
        )


def program() -> Path:
    """Builds the load generator unless it is cached; returns its path.

    Raises:
        Skip: The program could not be built.
    """
    return go_programs.build("peers", ROOT / "bench" / "peers", MODULES)
