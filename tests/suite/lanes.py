"""A plugin that distributes the suite over the worker processes of pytest-xdist, in lanes.

``pytest -n 5`` collects the suite in five processes. Tests of one lane run in one of them, one after another, because
they share something that is slow to start: a Spark session, a Cassandra node, a service. A lane may also be a file
whose slow tests have to start early. Lanes are distributed in the order of :data:`LANES`, the longest first, then the
files that share nothing, one by one, to whichever process is free.
"""

from __future__ import annotations

import contextlib
import gc
import re
import sys
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from xdist.scheduler import LoadScopeScheduling

LANES = {
    "service on cassandra": r"tests/smoke/test_service",
    "demo": r"tests/dist/test_demo",
    "spark": r"tests/spark/(?!unit/|faults/test_(writing|killed))",
    "measures": r"tests/bench/test_measures",
    "contract on cassandra": r"tests/contract/.*\[.*\bcassandra\b",
    "cassandra": r"tests/(storage/cassandra/|.*\[.*\bcassandra\b|bench/test_(cassandra|over_driver))",
    "three nodes": r"tests/(faults/(?!(\w+/)?test_two)|acceptance/test_(local_servers(?!.*ensemble)|serve_cass))",
    "groups with faults": r"tests/qdo/faults/test_groups",
    "spark faults": r"tests/spark/faults/",
    "two data centres": r"tests/faults/(\w+/)?test_two_centres",
    "histories": r"tests/sim/test_histories",
    "histories of groups": r"tests/sim/groups/test_histories",
    "zookeeper": (
        r"tests/(qdo/(zookeeper/|contract/.*\[.*\bzookeeper\b)"
        r"|acceptance/(test_local|facades/test_reg))"
    ),
    "workers": r"tests/qdo/(consumer|worker)/",
    "qdo commands": r"tests/qdo/(cli|curator)/",
    "commands": r"tests/cli/",
    "client": r"tests/client/",
    "facades": r"tests/acceptance/facades/test_(mq|rqms|emodb|emodb_java)\.py",
}
"""A pattern for the test ids of each lane. A test belongs to the first lane that matches."""
PATTERNS = {lane: re.compile(pattern) for lane, pattern in LANES.items()}


def lane_of(nodeid: str) -> str:
    for lane, pattern in PATTERNS.items():
        if pattern.match(nodeid):
            return lane
    return nodeid.partition("::")[0]


@contextlib.contextmanager
def first_alone(done: Path, worker: str, seconds: float = 300.0) -> Iterator[None]:
    """Lets the first process do something before the others do it.

    Args:
        done: A file that does not exist yet. It is created when the first process has finished, even after an error.
        worker: The id of this process. ``gw0`` is the first.
        seconds: Max seconds for which the others wait.
    """
    until = time.monotonic() + seconds
    while worker != "gw0" and not done.exists() and time.monotonic() < until:
        time.sleep(0.05)
    try:
        yield
    finally:
        done.touch()


YOUNG_OBJECTS = 10_000
"""Allocations between two runs of the garbage collector, instead of 700. Tests make many short-lived objects, and a
tenth of a run's processor time went into collections."""


@contextlib.contextmanager
def without_garbage() -> Iterator[None]:
    """Disables garbage collection in the block; then exempts all objects from it, and collects less often."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.set_threshold(YOUNG_OBJECTS, *gc.get_threshold()[1:])
        gc.enable()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Lets one process compile the tests of a new checkout before the others need them; delays garbage collection."""
    worker, here = getattr(session.config, "workerinput", None), Path(__file__)
    compiled = sys.dont_write_bytecode or any(here.parent.glob(f"__pycache__/test_{here.stem}.*.pyc"))
    with without_garbage():
        if worker is None or compiled:
            return (yield)
        with first_alone(Path(session.config.option.basetemp).parent / "collected", worker["workerid"]):
            return (yield)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> LoadScopeScheduling:
    """Distributes lanes instead of tests, in the order of the collection."""
    from xdist.scheduler import LoadScopeScheduling  # noqa: PLC0415 - xdist is installed when this is called

    class Lanes(LoadScopeScheduling):  # type: ignore[misc]  # xdist ships no types
        """Sends the tests of one lane to one worker process, in order."""

        def _split_scope(self, nodeid: str) -> str:
            return lane_of(nodeid)

    config.option.loadscopereorder = False  # keep the order of the collection, which is set below
    return Lanes(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sorts the longest lanes first if several processes share the suite."""
    if hasattr(config, "workerinput"):
        order = {lane: place for place, lane in enumerate(LANES)}
        items.sort(key=lambda item: order.get(lane_of(item.nodeid), len(order)))
