"""The program in Go that measures River: ``bench/job_queues/river/main.go``."""

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
"""What it needs, in the versions that it gets."""
VERSIONS = f"river {RIVER}, modernc.org/sqlite {SQLITE}"


def program() -> Path:
    """Returns the program.

    Raises:
        Skip: It could not be built.
    """
    return go_programs.built("river", ROOT / "bench" / "job_queues" / "river", MODULES)
