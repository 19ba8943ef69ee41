"""The public surface of the package."""

from __future__ import annotations

import sys

import pytest

import qdo
from qdo import errors
from tests.servers.processes import run_well


def test_all_is_sorted_complete_and_there() -> None:
    """Every public name exists and has a docstring, and every error is among them."""
    assert list(qdo.__all__) == sorted(qdo.__all__)
    tree = {name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)}
    assert tree <= set(qdo.__all__)
    for name in qdo.__all__:
        assert getattr(qdo, name).__doc__, name
    with pytest.raises(AttributeError, match="Workshop"):
        qdo.Workshop  # noqa: B018 - the access is the test


@pytest.mark.needs_programs
def test_importing_loads_no_driver() -> None:
    """Neither the package nor the consumer loads an HTTP library or a coordination driver, or reads the environment."""
    program = """
import os, sys
class Guarded(dict):
    def __getitem__(self, name): raise AssertionError(name)
    get = __getitem__
import asyncio, logging, socket
os.environ = Guarded()
import qdo
loaded = {name for name in sys.modules if name.startswith("queuey.")}
print(sorted(loaded | {"kazoo", "httpx2", "apsw", "msgspec"} & set(sys.modules)))
qdo.AsyncConsumer, qdo.Consumer, qdo.open_coordinator
print(sorted({"kazoo", "httpx2", "apsw", "sqlite3", "pyramid", "typer"} & set(sys.modules)))
"""
    assert run_well([sys.executable, "-c", program]).splitlines() == ["[]", "[]"]
