"""Tells at the end of a test run what the experiments amounted to."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.qdo.faults.servers.services import LocalService, Service

PROPERTY = "group experiment"
"""Under which a test records the counts of its run."""


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Writes a line for each experiment that passed."""
    for report in terminalreporter.getreports("passed"):
        for name, value in report.user_properties:
            if name == PROPERTY:
                terminalreporter.write_line(f"{report.nodeid}: {value}")


@pytest.fixture(params=["local", pytest.param("zookeeper", marks=pytest.mark.slow)])
def service(request: pytest.FixtureRequest, tmp_path: Path) -> Service:
    """Each coordination service in turn, with nothing in it."""
    if request.param == "local":
        return LocalService(tmp_path / "coordination.sqlite3")
    from tests.qdo.faults.servers.ensemble import ZooKeeperService  # noqa: PLC0415 - only who uses it needs the driver

    return ZooKeeperService(request.getfixturevalue("zookeeper_nodes"))
