"""The facade of SQS as the SDK for JavaScript uses it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.acceptance.sqs.conftest import Sqs
from tests.acceptance.sqs.toolchains import cache, fetch, run

VERSION = "3.1175.0"
NODE, NPM = shutil.which("node"), shutil.which("npm")
SCRIPT = Path(__file__).with_name("client.mjs")


@pytest.fixture(scope="module")
def sdk() -> Path:
    """The SDK for JavaScript, which is installed once; skips the test without node or npm."""
    if NODE is None or NPM is None:
        pytest.skip("needs node and npm, which are not installed")
    directory = cache(f"aws-sdk-{VERSION}")
    package = directory / "node_modules" / "@aws-sdk" / "client-sqs"
    if not (package / "package.json").exists():
        quiet = ["--silent", "--no-fund", "--no-audit", "--prefix", str(directory)]
        fetch([NPM, "install", *quiet, f"@aws-sdk/client-sqs@{VERSION}"], "The SDK for JavaScript")
    return package


def test_javascript(sdk: Path, sqs: Sqs) -> None:
    """Every action for standard queues does what the SDK expects, and errors have the SDK's types."""
    run([str(NODE), str(SCRIPT), str(sdk), "queues", "messages", "batches", "deadLetters", "errors"], sqs)
