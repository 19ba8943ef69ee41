"""Tells at the end of a test run what the experiments amounted to."""

from __future__ import annotations

import pytest

PROPERTY = "group experiment"
"""Under which a test records the counts of its run."""


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Writes a line for each experiment that passed."""
    for report in terminalreporter.getreports("passed"):
        for name, value in report.user_properties:
            if name == PROPERTY:
                terminalreporter.write_line(f"{report.nodeid}: {value}")
