"""Builds the Go program that measures River: ``bench/job_queues/river/main.go``."""

from __future__ import annotations

from pathlib import Path

from bench.started import go_programs
from bench.started.processes import ROOT

RIVER, SQLITE = "0.51.2", "1.62.0"
MODULES = {
    "github.com/riverqueue/river": RIVER,
    "github.com/riverqueue/river/riverdriver/riversqlite": RIVER,
    "modernc.org/sqlite": SQLITE,
}
"""The Go modules and their versions."""
VERSIONS = f"river {RIVER}, modernc.org/sqlite {SQLITE}"


def program() -> Path:
    """Builds the program unless it is cached; returns its path.

    Raises:
        Skip: The program could not be built.
    """
    return go_programs.build("river", ROOT / "bench" / "job_queues" / "river", MODULES)
