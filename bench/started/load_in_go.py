"""The program in Go that puts load on the queues and logs of others: ``bench/peers``."""

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
"""The clients, in the versions that it gets."""
Operation = Literal["post", "read", "job"]


@dataclass(frozen=True)
class Peer:
    """A server under load.

    Attributes:
        program: That of :func:`program`.
        kind: Its name there.
        address: Its address.
        process: Whose CPU counts; None if it is not known.
    """

    program: Path
    kind: str
    address: str
    process: Metered | None = None

    def load(
        self,
        operation: Operation,
        *,
        callers: int,
        seconds: float,
        batch: int = 1,
        count: int = 0,
    ) -> Sample:
        """Lets callers call, each one call after the other.

        Args:
            operation: Post, read a hundred, or claim one message and acknowledge it.
            callers: How many.
            seconds: How long at most.
            batch: Messages of a post.
            count: If not zero, the run ends with that many messages.

        Raises:
            Void: A call failed, or none ended.
        """
        plan = {
            "Address": self.address,
            "Callers": callers,
            "Batch": batch,
            "Bodies": traffic.bodies(1000),
            "Seconds": seconds,
            "Count": count,
        }
        before = self.process.cpu_seconds() if self.process else 0.0
        done = subprocess.run(
            [str(self.program), self.kind, operation],
            input=json.dumps(plan),
            capture_output=True,
            text=True,
            timeout=seconds + 120,
            check=False,
        )
        if done.returncode:
            raise Void(f"{self.kind}, {operation}: {done.stderr.strip()[-1000:]}")
        spent = self.process.cpu_seconds() - before if self.process else 0.0
        found = json.loads(done.stdout)
        return Sample(
            rate=found["messages"] / found["seconds"],
            p50=found["p50"],
            p99=found["p99"],
            longest=found["longest"],
            cpu=spent * 1e6 / max(1, found["messages"]),
            answers=found["messages"],
        )


def program() -> Path:
    """Returns the program.

    Raises:
        Skip: It could not be built.
    """
    return go_programs.built("peers", ROOT / "bench" / "peers", MODULES)
