"""The facade of SQS as aioboto3 uses it, in an environment of its own: it needs an older botocore than boto3 does."""

from __future__ import annotations

import sys
import venv
from pathlib import Path

import pytest

from tests.acceptance.sqs.conftest import Sqs
from tests.acceptance.sqs.toolchains import cache, fetch, run

VERSION = "15.5.0"
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
SCRIPT = Path(__file__).with_name("aio_client.py")

pytestmark = pytest.mark.slow  # A machine without a cache fetches and builds for minutes.


@pytest.fixture(scope="module")
def python() -> Path:
    """The interpreter of the environment, which is created once."""
    directory = cache(f"aioboto3-{VERSION}-python-{PYTHON}")
    interpreter = directory / "bin" / "python"
    complete = directory / "complete"
    if not complete.exists():
        venv.create(directory, clear=True, with_pip=True)
        quiet = ["--quiet", "--disable-pip-version-check", "--no-input"]
        fetch([str(interpreter), "-m", "pip", "install", *quiet, f"aioboto3=={VERSION}"], "aioboto3")
        complete.touch()
    return interpreter


def test_aioboto3(python: Path, sqs: Sqs) -> None:
    """Queues, messages and errors are as aioboto3 expects; of 30 tasks that send and receive each message has one."""
    run([str(python), str(SCRIPT)], sqs)
