"""The list of promises: each names the test that fails when it is broken, and nothing public is without a promise."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest

import qdo.cli
import qdo.cli.settings
import queuey.cli
from queuey.app.application import make_app
from queuey.app.opening import open_store
from queuey.console.resources import make_console
from queuey.facades.protocols import facades
from queuey.facades.settings import Facades
from queuey.settings import Settings
from queuey.settings.table import table

ROOT = Path(__file__).parents[2]
PROMISES: dict[str, dict[str, list[str]]] = tomllib.loads(Path(__file__).with_name("promises.toml").read_text())
"""By section and name: a sentence that says what holds, and the test function that fails when it does not."""
ROWS = [(f"{section}: {name}", *row) for section, rows in PROMISES.items() for name, row in rows.items()]
METHODS = ("GET", "POST", "PUT", "DELETE")
PAGES = ("docs/architecture-cassandra.md", "docs/architecture-claims.md", "docs/architecture-groups.md")
"""Pages that state the guarantees and rules, each with its name in bold."""
FACADES = msgspec.convert(
    {"emodb": {"beside": True}} | {name: {"prefix": f"/{name}"} for name in ("mq", "rqms", "sqs")}, Facades
)
OF_ONE_STORE = {"Messages.write_within"}
"""Methods that only Cassandra implements, and that the contract suite cannot test."""
Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def parse(path: str) -> ast.Module | None:
    return ast.parse((ROOT / path).read_text()) if (ROOT / path).is_file() else None


def find_fault(test: str) -> str | None:
    """Returns why a test keeps no promise, or None if it does."""
    path, *names = test.split("::")
    if (tree := parse(path)) is None:
        return "there is no such file"
    nodes: list[ast.stmt] = [tree]  # type: ignore[list-item] # a module has a body, too
    for name in names:
        nodes = [x for node in nodes for x in getattr(node, "body", ()) if getattr(x, "name", "") == name]
    if len(nodes) != 1 or not isinstance(function := nodes[0], Function) or not function.name.startswith("test_"):
        return "there is no such test"
    assigned = [x for x in tree.body if isinstance(x, ast.Assign) and ast.unparse(x.targets[0]) == "pytestmark"]
    marks = [*function.decorator_list, *(x.value for x in assigned)]
    if any(is_slow(mark) for mark in marks):
        return "it is slow, so neither make test nor make check runs it"
    if not any(isinstance(node, ast.Assert | ast.Call | ast.With) for x in function.body for node in ast.walk(x)):
        return "it checks nothing"
    return None


def is_slow(mark: ast.expr) -> bool:
    """Returns whether a mark makes all cases of a test slow: it is slow itself, or each of its plans is."""
    match mark:
        case ast.List(elts=marks):
            return any(map(is_slow, marks))
        case ast.Call(func=ast.Name(id="plans"), args=arguments):
            plans = [x for x in arguments if isinstance(x, ast.Call)]
            return all(any(word.arg == "slow" for word in plan.keywords) for plan in plans)
    return ast.unparse(mark) == "pytest.mark.slow"


def test_each_promise_has_its_test() -> None:
    """The test that a promise names exists, belongs to make test or make check, and checks something."""
    assert {key: f"{test}: {fault}" for key, _, test in ROWS if (fault := find_fault(test))} == {}


def test_each_promise_is_a_sentence() -> None:
    """A promise says in a sentence what holds."""
    assert [key for key, sentence, _ in ROWS if not re.fullmatch(r"[A-Z`].{8,}\.", sentence)] == []


def find_routes(directory: Path) -> Iterator[str]:
    """Yields the method and the path of each resource, with the console and all facades."""
    store = open_store(Settings(data=directory), jobs=False)
    try:
        app = make_app(store, includes=[make_console(list, is_local=True), facades(FACADES, b"x" * 32)])
        for route, endpoint in app.resources.routes:
            path = re.sub(r"{(\w+):[^{}]*}", r"{\1}", re.sub(r"{(_|rest):[^{}]*(\(.*\)\?)?}", "", route.pattern))
            refusal = endpoint.view("NONE")
            yield from (f"{method} {path}" for method in METHODS if endpoint.view(method) is not refusal)
    finally:
        store.close()


def find_commands(command: Any, words: tuple[str, ...]) -> Iterator[str]:  # noqa: ANN401 - of typer
    if not hasattr(command, "commands"):
        yield " ".join(words)
        return
    for name, subcommand in command.commands.items():
        yield from find_commands(command.load(name) if hasattr(command, "load") else subcommand, (*words, name))


def find_store_methods() -> Iterator[str]:
    """Yields the public methods of the storage contracts."""
    for path in sorted((ROOT / "queuey/storage/contracts").glob("*.py")):
        for kind in (x for x in ast.parse(path.read_text()).body if isinstance(x, ast.ClassDef)):
            methods = [x.name for x in kind.body if isinstance(x, Function) and not x.name.startswith("_")]
            yield from (f"{kind.name}.{name}" for name in methods if "ABC" in map(ast.unparse, kind.bases))


def list_public(section: str, directory: Path) -> set[str]:
    """Returns the names that a section must have, from the code or the pages that declare them."""
    match section:
        case "guarantees":
            return {name for page in PAGES for name in re.findall(r"\*\*([GO]\d)\*\*", (ROOT / page).read_text())}
        case "routes":
            return set(find_routes(directory))
        case "settings":
            return {setting.name for setting in table()}
        case "settings of workers":
            return set(qdo.cli.settings.table())
        case "commands":
            programs = (queuey.cli, qdo.cli)
            return {
                line
                for program in programs
                for name in program.COMMANDS
                for line in find_commands(program.load(name), (program.__name__.partition(".")[0], name))
            }
        case _:
            return set(find_store_methods())


@pytest.mark.parametrize(
    "section", ["guarantees", "routes", "settings", "settings of workers", "commands", "store methods"]
)
def test_everything_public_is_promised(section: str, tmp_path: Path) -> None:
    """Each guarantee, route, setting, command and method of a store has a promise, and none is for what is gone."""
    public = list_public(section, tmp_path)
    assert (public - PROMISES[section].keys(), PROMISES[section].keys() - public) == (set(), set())


def test_methods_of_stores_have_contract_tests() -> None:
    """What a method of a store promises is tested by the contract suite, which runs on every store."""
    elsewhere = {key for key, (_, test) in PROMISES["store methods"].items() if not test.startswith("tests/contract/")}
    assert elsewhere == OF_ONE_STORE
