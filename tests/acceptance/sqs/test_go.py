"""The facade of SQS as the SDK for Go uses it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.acceptance.sqs.conftest import Sqs
from tests.acceptance.sqs.toolchains import cache, fetch, run

GO = shutil.which("go")
MODULE = Path(__file__).with_name("go")

pytestmark = pytest.mark.slow  # A machine without a cache fetches and builds for minutes.


@pytest.fixture(scope="module")
def program() -> Path:
    """The compiled program; its dependencies are fetched and compiled once."""
    if GO is None:
        pytest.skip("needs go, which is not installed")
    directory = cache("go")
    built = directory / "sqs"
    variables = {"GOMODCACHE": str(directory / "modules"), "GOCACHE": str(directory / "build"), "GOTOOLCHAIN": "local"}
    fetch([GO, "mod", "download"], "The SDK for Go", variables, at=MODULE)
    line = [GO, "build", "-mod=readonly", "-buildvcs=false", "-o", str(built), "."]
    environ = {**os.environ, **variables}
    done = subprocess.run(line, cwd=MODULE, env=environ, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return built


def test_go(program: Path, sqs: Sqs) -> None:
    """Every action for standard queues does what the SDK expects, and errors have the SDK's types."""
    run([str(program)], sqs)
