"""Clients of other languages: fetched once, and kept in the user's cache."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import platformdirs
import pytest

from tests.acceptance.sqs.conftest import Sqs

REGION = "eu-west-1"
FETCH_SECONDS = 300
RUN_SECONDS = 90


def cache(name: str) -> Path:
    path = platformdirs.user_cache_path("queuey-tests") / name
    path.mkdir(parents=True, exist_ok=True)
    return path


def fetch(line: Sequence[str], what: str, variables: Mapping[str, str] | None = None, at: Path | None = None) -> None:
    """Runs a command that fetches something. Skips the test if it fails, as without a network."""
    environ = {**os.environ, **(variables or {})}
    done = subprocess.run(line, cwd=at, env=environ, capture_output=True, text=True, timeout=FETCH_SECONDS, check=False)
    if done.returncode:
        pytest.skip(f"{what} could not be fetched: {(done.stderr or done.stdout)[-300:]}")


def client_variables(sqs: Sqs) -> dict[str, str]:
    plain = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    return {
        **plain,
        "AWS_ACCESS_KEY_ID": sqs.access_key,
        "AWS_SECRET_ACCESS_KEY": sqs.secret,
        "AWS_REGION": REGION,
        "AWS_EC2_METADATA_DISABLED": "true",
        "ENDPOINT": sqs.url,
    }


def run(line: Sequence[str], sqs: Sqs) -> None:
    done = subprocess.run(
        line, env=client_variables(sqs), capture_output=True, text=True, timeout=RUN_SECONDS, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
