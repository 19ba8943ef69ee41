"""What tests need besides Python and this repository: a plugin that marks the tests and divides the suite.

* ``--suite test`` (``make test``) has the tests that need nothing, and those in ``tests/smoke``, which use each real
  server once. ``--suite check`` (``make check``) has all others except the slow ones. Without the option, or with paths
  and ``-m needs_cassandra`` and the like, the named tests run.
* A mark comes from the fixtures of a test and from parameters that lead to fixtures, such as the name of a store
  (:data:`BY_FIXTURE`); from its path (:data:`BY_PATH`); or from a decorator: ``@pytest.mark.needs_programs``.
* A test without a mark may not start a program: it fails, and the error names the mark.
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NEEDS = {
    "needs_cassandra": "a Cassandra node",
    "needs_zookeeper": "a ZooKeeper server",
    "needs_spark": "PySpark, in local mode",
    "needs_java": "Java, for programs of other projects",
    "needs_chromium": "Chromium",
    "needs_node": "Node.js",
    "needs_programs": "programs of its own: a service, workers, commands",
    "needs_histories": "a processor for a while: simulated histories from many seeds, or long tables",
}
"""The marks, and what their tests need."""
BY_FIXTURE = {
    "cassandra": "needs_cassandra",
    "cassandra_cluster": "needs_cassandra",
    "contract_keyspace": "needs_cassandra",
    "zookeeper": "needs_zookeeper",
    "zookeeper_ensemble": "needs_zookeeper",
    "spark": "needs_spark",
    "served": "needs_programs",
    "servers": "needs_programs",
    "running": "needs_programs",
    "over_socket": "needs_programs",
}
"""Marks by fixture, or by the value of a parameter that names a store or a coordination service."""
BY_PATH: dict[str, str | None] = {
    "tests/acceptance/": "needs_programs",
    "tests/acceptance/facades/test_emodb_java.py": "needs_java",
    "tests/bench/": "needs_programs",
    "tests/console/chromium/": "needs_chromium",
    "tests/deploy/": "needs_programs",
    "tests/deploy/test_local_addresses.py": None,
    "tests/dist/": "needs_programs",
    "tests/faults/": "needs_programs",
    "tests/javascript/": "needs_node",
    "tests/qdo/cli/": "needs_programs",
    "tests/qdo/curator/": "needs_zookeeper",
    "tests/qdo/faults/": "needs_programs",
    "tests/qdo/test_docs.py": "needs_programs",
    "tests/qdo/worker/": "needs_programs",
    "tests/qdo/zookeeper/": "needs_zookeeper",
    "tests/servers/": "needs_programs",
    "tests/sim/": "needs_histories",
    "tests/sim/groups/": None,
    "tests/sim/test_histories.py": None,
    "tests/sim/test_model.py": None,
    "tests/sim/test_sharing.py": None,
    "tests/sim/test_waiting.py": None,
    "tests/soak/": "needs_programs",
    "tests/spark/": "needs_spark",
    "tests/spark/unit/": None,
}
"""Marks of the tests below a path. The longest path counts. None means no mark."""
SIMULATED = "simulated"
"""The store whose tests with ``slow_on`` still belong to ``make check``: those with the others are slow."""
SMOKE = "tests/smoke/"
SUITES = ("test", "check")
PROGRAM_EVENTS = {"subprocess.Popen", "os.fork", "os.posix_spawn", "os.exec"}
"""Audit events that Python raises before it starts a program."""


class UnmarkedProgramError(AssertionError):
    """A test without the mark has started a program."""


_unmarked: pytest.Item | None = None
"""The running test, if it may not start programs."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--suite", choices=SUITES, help="run the tests of make test, or those of make check")


def pytest_configure(config: pytest.Config) -> None:
    for name, text in NEEDS.items():
        config.addinivalue_line("markers", f"{name}: needs {text}; run by make check")
    config.addinivalue_line("markers", "slow_on(*backends): slow on these stores; on a simulated one in make check")
    sys.addaudithook(_refuse_unmarked_programs)


def need_of_path(path: str) -> str | None:
    """Returns what the longest matching prefix needs, or None."""
    matching = [prefix for prefix in BY_PATH if path.startswith(prefix)]
    return BY_PATH[max(matching, key=len)] if matching else None


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skips folders without a test of ``make test``, if that is run: importing them takes longer than many tests."""
    if config.getoption("--suite") != "test" or not collection_path.is_relative_to(ROOT):
        return None
    path = collection_path.relative_to(ROOT).as_posix() + "/" * collection_path.is_dir()
    exceptions = any(prefix.startswith(path) and need is None for prefix, need in BY_PATH.items())
    return True if need_of_path(path) and not exceptions else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks all tests with what they need; with ``--suite``, deselects slow ones and those of other parts."""
    for item in items:
        if slow_store(item) not in {None, SIMULATED}:
            item.add_marker(pytest.mark.slow)
        for name in sorted(_needs(item)):
            item.add_marker(getattr(pytest.mark, name))
    if suite := config.getoption("--suite"):
        chosen = {id(item) for item in items if not item.get_closest_marker("slow") and suite == suite_of(item)}
        config.hook.pytest_deselected(items=[item for item in items if id(item) not in chosen])
        items[:] = [item for item in items if id(item) in chosen]


def suite_of(item: pytest.Item) -> str:
    smoke = item.nodeid.startswith(SMOKE)
    return "test" if smoke or not any(mark.name in NEEDS for mark in item.iter_markers()) else "check"


def _needs(item: pytest.Item) -> set[str]:
    """Returns the marks that a test needs by its fixtures, by texts among its parameters, and by its path."""
    parameters = getattr(getattr(item, "callspec", None), "params", {}).values()
    names = {*getattr(item, "fixturenames", ()), *(value for value in parameters if isinstance(value, str))}
    by_path = "needs_histories" if slow_store(item) == SIMULATED else need_of_path(item.nodeid)
    return {BY_FIXTURE[name] for name in names & BY_FIXTURE.keys()} | ({by_path} if by_path else set())


def slow_store(item: pytest.Item) -> str | None:
    """Returns the store of a test, if its closest ``slow_on`` names that."""
    on, case = item.get_closest_marker("slow_on"), getattr(item, "callspec", None)
    store: str | None = case.params.get("backend") if on and case else None
    return store if on and store in on.args else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Forbids programs during a test without a mark, except in smoke tests."""
    global _unmarked  # noqa: PLW0603 - an audit hook cannot be removed, so there is one for all tests
    marked = item.nodeid.startswith(SMOKE) or any(mark.name in NEEDS for mark in item.iter_markers())
    _unmarked = None if marked else item
    try:
        return (yield)
    finally:
        _unmarked = None


def _refuse_unmarked_programs(event: str, arguments: tuple[object, ...]) -> None:
    if event in PROGRAM_EVENTS and _unmarked is not None:
        program = str(arguments[0])[:100] if arguments else ""
        raise UnmarkedProgramError(
            f"{_unmarked.nodeid} starts a program ({event} {program}): mark it with @pytest.mark.needs_programs, "
            "or by its path in tests/suite/needs.py"
        )
