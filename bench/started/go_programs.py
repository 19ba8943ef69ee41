"""Builds the bench's Go programs once and caches them: load generators for systems whose usual client is in Go."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path

import platformdirs

from bench.harness import Skip

BUILD_SECONDS = 900.0


def build(name: str, source: Path, modules: Mapping[str, str]) -> Path:
    """Builds a program from the Go files of a directory, unless the cache has it; returns its path.

    Args:
        name: Name of the program.
        source: Directory of the Go files.
        modules: Modules that the program imports, with their versions.

    Raises:
        Skip: The program could not be built.
    """
    texts = {path.name: path.read_bytes() for path in sorted(source.glob("*.go"))}
    digest = sha256(repr((texts, dict(modules))).encode()).hexdigest()[:16]
    program = _cache_directory(name, digest) / name
    if program.exists():
        return program
    shutil.rmtree(program.parent, ignore_errors=True)
    program.parent.mkdir(parents=True)
    for file, text in texts.items():
        (program.parent / file).write_bytes(text)
    requirements = [f"{module}@v{version}" for module, version in modules.items()]
    steps = (["mod", "init", name], ["get", *requirements], ["mod", "tidy"], ["build", "-o", name, "."])
    _run_go(name, program.parent, steps)
    return program


def install(name: str, module: str, version: str) -> Path:
    """Installs a program that is its own Go module, such as a server, unless the cache has it; returns its path.

    Raises:
        Skip: The program could not be built.
    """
    directory = _cache_directory(name, version)
    if not (directory / name).exists():
        directory.mkdir(parents=True, exist_ok=True)
        _run_go(name, directory, [["install", f"{module}@v{version}"]])
    return directory / name


def _cache_directory(name: str, version: str) -> Path:
    return platformdirs.user_cache_path("queuey-bench") / f"{name}-{version}"


def _run_go(name: str, directory: Path, steps: Iterable[Sequence[str]]) -> None:
    """Runs ``go`` for each step; raises Skip if it is not installed or a step fails."""
    go = shutil.which("go")
    if go is None:
        raise Skip("needs Go, which is not installed")
    environment = {**os.environ, "CGO_ENABLED": "0", "GOBIN": str(directory)}
    for step in steps:
        try:
            process = subprocess.run(
                [go, *step],
                cwd=directory,
                env=environment,
                capture_output=True,
                text=True,
                timeout=BUILD_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Skip(f"{name} cannot be built: {error}") from error
        if process.returncode:
            raise Skip(f"{name} cannot be built: {process.stderr.strip()[-300:]}")
