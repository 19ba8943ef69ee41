"""The client in Node, against a service."""

from __future__ import annotations

import os
import shutil
import subprocess
from importlib.resources import files
from pathlib import Path

import pytest

from tests.servers.served import Served

HERE = Path(__file__).parent
CLIENT = Path(str(files("queuey.web.javascript") / "queuey.js"))
NODE = shutil.which("node")

needs_node = pytest.mark.skipif(NODE is None, reason="needs node, which is not installed")


@needs_node
def test_the_client_in_node(tmp_path: Path) -> None:
    """All that it does, and what it says when that fails."""
    with Served(tmp_path) as served:
        profile = served.profile
        said = {"URL_": profile.url, "KEY": profile.key, "APPLICATION": profile.application, "CLIENT": CLIENT.as_uri()}
        done = subprocess.run(
            [str(NODE), "--test", str(HERE / "client.test.mjs")],
            env={**os.environ, **{name: str(value) for name, value in said.items()}},
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr
