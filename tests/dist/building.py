"""Builds the wheel and the sdist as ``make dist`` does, and lists what belongs in them."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatch
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from packaging.requirements import Requirement

from tests.servers.processes import run_well

ROOT = Path(__file__).parents[2]
CACHES = ("__pycache__", "*.py[cod]", ".*_cache", ".venv", ".git", ".hypothesis", "*.sqlite*")
DEVELOPMENT = "dev"
"""The extra with the tools for working on a checkout; it includes all others."""


class Built(NamedTuple):
    """The wheel and the sdist."""

    wheel: Path
    sdist: Path


def build(tree: Path, target: Path) -> Built:
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(target)]
    run_well(command, cwd=tree)
    (wheel,), (sdist,) = target.glob("*.whl"), target.glob("*.tar.gz")
    return Built(wheel, sdist)


def is_cache(path: str) -> bool:
    return any(fnmatch(part, pattern) for part in path.split("/") for pattern in CACHES)


def files(*folders: str) -> Iterator[str]:
    for folder in folders:
        paths = (path.relative_to(ROOT).as_posix() for path in (ROOT / folder).rglob("*") if path.is_file())
        yield from (path for path in paths if not is_cache(path))


def project() -> dict[str, Any]:
    table: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return table


def requirements(*names: str) -> list[Requirement]:
    """Returns what the core requires and what these extras do, with the extras that they include."""
    table = project()
    required = []
    lines = chain(table["dependencies"], *(table["optional-dependencies"][name] for name in names))
    for line in map(Requirement, lines):
        required += requirements(*line.extras) if line.name == table["name"] else [line]
    return required


def extras() -> list[str]:
    return sorted(project()["optional-dependencies"].keys() - {DEVELOPMENT})
