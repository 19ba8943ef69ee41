"""The sources of servers, and how the plugin treats tests that need them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers.processes import run_to_end

ROOT = Path(__file__).parents[2]
RUN_SECONDS = 300

BROKEN = """
from deploy.local import zookeeper as kind
kind.MAIN = "no.such.Server"

def test_never_runs(zookeeper):
    pass
"""


def run_suite(directory: Path, text: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Runs pytest on one file with only this plugin, without addresses of servers and without a Docker engine."""
    (directory / "test_it.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-p", "tests.servers.plugin", "-c", os.devnull, "-rs", *options]
    plain = {name: value for name, value in os.environ.items() if not name.startswith("QUEUEY_TEST_")}
    variables = plain | {"DOCKER_HOST": "unix:///nowhere"}
    return run_to_end([*command, f"--rootdir={directory}", directory], RUN_SECONDS, cwd=ROOT, env=variables)


def test_without_servers(tmp_path: Path) -> None:
    """With ``--without-servers``, tests that need servers are visibly skipped."""
    done = run_suite(tmp_path, BROKEN, "--without-servers")
    assert done.returncode == pytest.ExitCode.OK
    assert "1 skipped" in done.stdout
    assert "--without-servers" in done.stdout


def test_a_server_that_cannot_start_fails_the_run(tmp_path: Path) -> None:
    """A test whose server did not start fails, and the report has the server's output."""
    done = run_suite(tmp_path, BROKEN)
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    assert "1 error" in done.stdout
    assert "no.such.Server" in done.stdout
    assert "ended while starting" in done.stdout
