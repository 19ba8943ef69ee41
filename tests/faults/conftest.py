"""Two data centres to be cut off from each other; and at the end of a test run, what the experiments amounted to."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.faults.centres import Centres

PROPERTY = "experiment"
"""Under which a test records the counts of its run."""


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Writes a line for each experiment that passed."""
    for report in terminalreporter.getreports("passed"):
        for name, value in report.user_properties:
            if name == PROPERTY:
                terminalreporter.write_line(f"{report.nodeid}: {value}")


@pytest.fixture(scope="session")
def session_centres(servers: contextlib.ExitStack) -> Centres:
    """Two data centres of one node each."""
    from tests.faults.centres import start_centres  # noqa: PLC0415 - only who uses it needs the driver

    return servers.enter_context(start_centres(1))


@pytest.fixture(scope="session")
def centres_keyspace(session_centres: Centres) -> str:
    """The URL of a keyspace with a copy of everything in each."""
    from tests.faults.centres import keyspace_on  # noqa: PLC0415 - only who uses it needs the driver

    return keyspace_on(session_centres)


@pytest.fixture
def centres(session_centres: Centres) -> Iterator[Centres]:
    """The two data centres for a test that cuts their link; it is healed afterwards."""
    yield session_centres
    session_centres.link.heal()
    session_centres.cluster.restore()
