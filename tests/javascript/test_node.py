"""The client in Node, against a service."""

from __future__ import annotations

import os
import shutil
from importlib.resources import files
from pathlib import Path

import pytest

from tests.servers.processes import run_well
from tests.servers.served import Served

HERE = Path(__file__).parent
CLIENT = Path(str(files("queuey") / "javascript" / "queuey.js"))
NODE = shutil.which("node")

needs_node = pytest.mark.skipif(NODE is None, reason="needs node, which is not installed")


def _test(file: str, **variables: str) -> None:
    run_well([str(NODE), "--test", HERE / file], env={**os.environ, "CLIENT": CLIENT.as_uri(), **variables})


@needs_node
def test_arguments_of_the_client() -> None:
    """Every argument is refused before anything is sent, or reaches exactly what it names."""
    _test("arguments.test.mjs")


@needs_node
def test_pauses_of_the_client() -> None:
    """No answer makes the client ask without a pause, wait for days, or end its stream."""
    _test("pauses.test.mjs")


@needs_node
def test_outages() -> None:
    """Every request and loop survives a service that fails for a while, in the promised time and without a storm."""
    _test("outages.test.mjs")


@needs_node
def test_a_member_of_a_group() -> None:
    """A member handles messages of what it owns, in order, and keeps every rule of ``docs/architecture-groups.md``."""
    _test("consume.test.mjs")


@needs_node
def test_the_client_in_node(tmp_path: Path) -> None:
    """Everything that it does, and its errors."""
    with Served(tmp_path) as served:
        profile = served.profile
        _test("client.test.mjs", URL_=profile.url, KEY=profile.key, APPLICATION=profile.application)
