"""The program in Go that measures River, built once where there is Go: ``bench/job_queues/river/main.go``."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import platformdirs

from bench.harness import Skip
from bench.started.processes import ROOT

SOURCE = ROOT / "bench" / "job_queues" / "river" / "main.go"
RIVER, SQLITE = "0.51.2", "1.62.0"
MODULES = {
    "github.com/riverqueue/river": RIVER,
    "github.com/riverqueue/river/riverdriver/riversqlite": RIVER,
    "modernc.org/sqlite": SQLITE,
}
"""What it needs, in the versions that it gets."""
VERSIONS = f"river {RIVER}, modernc.org/sqlite {SQLITE}"
BUILD_SECONDS = 600.0


def program() -> Path:
    """Returns the program.

    Raises:
        Skip: It could not be built.
    """
    go = shutil.which("go")
    if go is None:
        raise Skip("needs Go, which is not installed")
    directory = platformdirs.user_cache_path("queuey-bench") / f"river-{RIVER}-{SQLITE}"
    built, source = directory / "river", directory / "main.go"
    text = SOURCE.read_text("utf-8")
    if built.exists() and source.read_text("utf-8") == text:
        return built
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    source.write_text(text, "utf-8")
    needed = [f"{name}@v{version}" for name, version in MODULES.items()]
    for step in (["mod", "init", "river"], ["get", *needed], ["build", "-o", built.name, "."]):
        try:
            done = subprocess.run(
                [go, *step],
                cwd=directory,
                env={**os.environ, "CGO_ENABLED": "0"},
                capture_output=True,
                text=True,
                timeout=BUILD_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Skip(f"River cannot be built: {error}") from error
        if done.returncode:
            raise Skip(f"River cannot be built: {done.stderr.strip()[-300:]}")
    return built
