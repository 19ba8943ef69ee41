"""Every public class and function of the client, of Qdo and of the Spark source has an example in its docstring.

The examples of the client and of Qdo run here, on a service. In examples with ``>>>`` the name ``client`` is a client,
and the queue ``orders`` has the messages ``one apple`` and ``two eggs``. Examples after ``::`` need nothing.
The examples of the Spark source run in ``tests/spark/test_docs.py``.
"""

from __future__ import annotations

import doctest
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import qdo
import queuey.client
import queuey.embedded
import queuey.spark
from queuey.client import Client
from tests.pages import ROOT, Reader, examples
from tests.servers.served import Served


def public(module: ModuleType) -> dict[str, Any]:
    """Returns the public classes and functions of a package by name, without exceptions."""
    exports = {f"{module.__name__}.{name}": getattr(module, name) for name in module.__all__}
    return {
        name: thing
        for name, thing in exports.items()
        if inspect.isroutine(thing) or (inspect.isclass(thing) and not issubclass(thing, Exception))
    }


def doctests(thing: Any, name: str) -> list[doctest.DocTest]:  # noqa: ANN401 - a class or a function
    """Returns the examples with ``>>>`` of a class and its methods, or of a function."""
    return [test for test in doctest.DocTestFinder().find(thing, name, module=False) if test.examples]


RUN = {**public(queuey.client), **public(qdo)}
WITH_DOCTESTS = sorted(name for name, thing in RUN.items() if doctests(thing, name))
WITH_PROGRAMS = [name for name, thing in RUN.items() if examples(thing)]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A service for all examples."""
    with Served(tmp_path_factory.mktemp("served")) as served:
        yield served


@pytest.fixture
def client(served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """A client of a service from which all queues are removed. Local groups use a directory of the test."""
    monkeypatch.setenv("QUEUEY_PROFILE", str(served.profile_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with Client() as client:
        for name in list(client.queue_names()):
            client.delete_queue(name)
        yield client


@pytest.mark.parametrize("module", [queuey.client, queuey.embedded, qdo, queuey.spark])
def test_everything_public_has_an_example(module: ModuleType) -> None:
    """Every public class and function shows in its docstring how it is used."""
    assert public(module)
    missing = [
        name
        for name, thing in public(module).items()
        if not examples(thing) and not any(test.name == name for test in doctests(thing, name))
    ]
    assert missing == []


@pytest.mark.parametrize("name", WITH_DOCTESTS)
def test_examples_show_what_happens(client: Client, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each example with ``>>>`` prints what it shows. Its files are not left behind."""
    monkeypatch.chdir(tmp_path)
    for test in doctests(RUN[name], name):
        for queue in list(client.queue_names()):
            client.delete_queue(queue)
        client.create_queue("orders")
        client.send_many("orders", ["one apple", "two eggs"])
        test.globs = {"client": client}
        printed: list[str] = []
        assert doctest.DocTestRunner(verbose=False).run(test, out=printed.append).failed == 0, "".join(printed)


def test_inner_examples_show_what_happens() -> None:
    """Examples with ``>>>`` of inner modules print what they show, if they need no service."""
    tests = [test for module in inner_modules() for test in doctest.DocTestFinder().find(module)]
    printed: list[str] = []
    count = 0
    for test in tests:
        source = "".join(example.source for example in test.examples)
        if source and not re.search(r"\b(client|spark|consumer|worker|import)\b", source):
            doctest.DocTestRunner(verbose=False).run(test, out=printed.append)
            count += 1
    assert not printed, "".join(printed)
    assert count > 15


def inner_modules() -> Iterator[ModuleType]:
    """Imports and yields the modules with ``>>>``, except those of the client's two forms."""
    for package in ("queuey", "qdo", "bench"):
        for path in sorted((ROOT / package).rglob("*.py")):
            if ">>>" in path.read_text("utf-8") and not {"_async", "_sync"} & set(path.parts):
                name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
                yield importlib.import_module(name.removesuffix(".__init__"))


def test_programs_run(client: Client, served: Served, tmp_path: Path) -> None:
    """Each example after ``::`` runs, in the order in which the package lists the classes."""
    reader = Reader(served, tmp_path, XDG_STATE_HOME=str(tmp_path))
    client.create_queue("orders", partitions=2)
    client.send("orders", "a text")
    assert WITH_PROGRAMS
    for name in WITH_PROGRAMS:
        for example in examples(RUN[name]):
            reader.run(name, example)
