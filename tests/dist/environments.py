"""Virtual environments without this checkout. They need pip and an index, or wheels that pip is told to use."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

from tests.dist.building import ROOT
from tests.servers.processes import run_well
from tests.servers.served import environment

CONSTRAINTS = str(ROOT / "constraints.txt")


class Environment:
    """A virtual environment without this checkout.

    Args:
        home: Directory of the environment.
    """

    def __init__(self, home: Path) -> None:
        self.home = home
        self.programs = home / "bin"
        # An empty variable counts as unset; the programs may keep files of their own in the cache.
        self.variables = environment(PYTHONPATH="", XDG_CACHE_HOME=str(home / "cache"))
        self.variables["PIP_CACHE_DIR"] = os.environ.get("PIP_CACHE_DIR", str(Path.home() / ".cache" / "pip"))
        self.shell(f"{shlex.quote(sys.executable)} -m venv {shlex.quote(str(home))}", home.parent)

    def shell(self, command: str, directory: Path, **variables: str) -> str:
        """Runs a command with the environment's programs first on the path; returns its output, fails if it does."""
        path = f"{self.programs}{os.pathsep}{os.environ['PATH']}"
        return run_well(["/bin/sh", "-euc", command], cwd=directory, env=self.variables | {"PATH": path} | variables)

    def install(self, target: str, *, directory: Path) -> None:
        self.shell(f"pip install -q -c {shlex.quote(CONSTRAINTS)} {shlex.quote(target)}", directory)

    def python(self, program: str) -> str:
        return self.shell(f"python -c {shlex.quote(program)}", self.home)
