"""The facade of SQS as other clients use it: fetched once, and kept in the user's cache."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import platformdirs
import pytest

from tests.acceptance.sqs.conftest import REGION, Sqs
from tests.servers.processes import run_to_end, run_well

HERE = Path(__file__).parent
FETCH_SECONDS = 300
RUN_SECONDS = 90
SDK = "3.1175.0"
GO, NODE, NPM = shutil.which("go"), shutil.which("node"), shutil.which("npm")


def cache(name: str) -> Path:
    path = platformdirs.user_cache_path("queuey-tests") / name
    path.mkdir(parents=True, exist_ok=True)
    return path


def fetch(line: Sequence[str], what: str, variables: Mapping[str, str] | None = None, at: Path | None = None) -> None:
    """Runs a command that fetches something. Skips the test if it fails, as without a network."""
    environ = {**os.environ, **(variables or {})}
    done = run_to_end(line, FETCH_SECONDS, cwd=at, env=environ)
    if done.returncode:
        pytest.skip(f"{what} could not be fetched: {(done.stderr or done.stdout)[-300:]}")


def run(line: Sequence[str], sqs: Sqs) -> None:
    plain = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    own = {"AWS_ACCESS_KEY_ID": sqs.access_key, "AWS_SECRET_ACCESS_KEY": sqs.secret, "AWS_REGION": REGION}
    variables = {**plain, **own, "AWS_EC2_METADATA_DISABLED": "true", "ENDPOINT": sqs.url}
    run_well(line, RUN_SECONDS, env=variables)


@pytest.mark.slow  # A machine without a cache fetches and builds for minutes.
@pytest.mark.skipif(GO is None, reason="needs go, which is not installed")
def test_go(sqs: Sqs) -> None:
    """Every action for standard queues does what the SDK for Go expects, and errors have the SDK's types."""
    directory = cache("go")
    built, module = directory / "sqs", HERE / "go"
    variables = {"GOMODCACHE": str(directory / "modules"), "GOCACHE": str(directory / "build"), "GOTOOLCHAIN": "local"}
    fetch([str(GO), "mod", "download"], "The SDK for Go", variables, at=module)
    line = [str(GO), "build", "-mod=readonly", "-buildvcs=false", "-o", str(built), "."]
    environ = {**os.environ, **variables}
    run_well(line, cwd=module, env=environ)
    run([str(built)], sqs)


@pytest.mark.skipif(NODE is None or NPM is None, reason="needs node and npm, which are not installed")
def test_javascript(sqs: Sqs) -> None:
    """Every action for standard queues does what the SDK for JavaScript expects, and errors have the SDK's types."""
    directory = cache(f"aws-sdk-{SDK}")
    package = directory / "node_modules" / "@aws-sdk" / "client-sqs"
    if not (package / "package.json").exists():
        quiet = ["--silent", "--no-fund", "--no-audit", "--prefix", str(directory)]
        fetch([str(NPM), "install", *quiet, f"@aws-sdk/client-sqs@{SDK}"], "The SDK for JavaScript")
    actions = ("queues", "messages", "batches", "deadLetters", "errors")
    run([str(NODE), str(HERE / "client.mjs"), str(package), *actions], sqs)
