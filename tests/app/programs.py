"""What the examples of pages need: a key of an operator, and programs next to the client's npm package."""

from __future__ import annotations

import os
import re
import tarfile
from pathlib import Path

from deploy.npm import NAME, pack
from tests.javascript.test_node import NODE
from tests.servers.processes import run_to_end
from tests.servers.served import Served


def make_operator_key(served: Served) -> str:
    with served.command("app", "key-add", "@all", "--data", str(served.data), "--json") as command:
        [key] = re.findall(r"[0-9A-Za-z_-]{40,}", command.communicate(timeout=60)[0])
    return str(key)


def install_client(directory: Path) -> None:
    with tarfile.open(pack(directory)) as package:
        package.extractall(directory / "node_modules" / NAME, filter="data")
    for path in (directory / "node_modules" / NAME / "package").iterdir():
        path.rename(path.parents[1] / path.name)


def run_module(directory: Path, text: str, key: str) -> None:
    """Runs a module in Node, which must end well."""
    (directory / "sample.mjs").write_text(text)
    done = run_to_end([str(NODE), "sample.mjs"], cwd=directory, env={**os.environ, "KEY": key})
    assert (done.returncode, done.stderr) == (0, ""), text + done.stdout + done.stderr
