"""The types of the client, as TypeScript reads them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import platformdirs
import pytest

from tests.javascript.test_node import CLIENT, HERE
from tests.servers.processes import run_well

VERSION = "5.9.3"
NPM = shutil.which("npm")


@pytest.fixture(scope="module")
def tsc() -> Path:
    """The compiler, fetched once."""
    if NPM is None:
        pytest.skip("needs npm, which is not installed")
    cache = platformdirs.user_cache_path("queuey-tests") / f"typescript-{VERSION}"
    compiler = cache / "node_modules" / "typescript" / "bin" / "tsc"
    if not compiler.exists():
        cache.mkdir(parents=True, exist_ok=True)
        command = [
            NPM,
            "install",
            "--silent",
            "--no-fund",
            "--no-audit",
            "--prefix",
            str(cache),
            f"typescript@{VERSION}",
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        if done.returncode:
            pytest.skip(f"TypeScript could not be fetched: {done.stderr[-300:]}")
    return compiler


def test_the_types_of_the_client(tsc: Path, tmp_path: Path) -> None:
    """A program that uses the whole client compiles, strictly; wrong uses do not."""
    for path in (CLIENT, CLIENT.with_name("queuey.d.ts"), HERE / "usage.ts"):
        shutil.copy(path, tmp_path)
    strict = [
        "--strict",
        "--noEmit",
        "--target",
        "es2022",
        "--module",
        "nodenext",
        "--lib",
        "es2022,dom,dom.asynciterable",
    ]
    run_well(["node", str(tsc), *strict, "usage.ts"], cwd=tmp_path)
