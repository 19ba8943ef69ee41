"""Tells at the end of a test run what each fault run amounted to."""

from __future__ import annotations

import pytest

from tests.harness.plans import PROPERTY


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Writes a line for each run that passed."""
    for report in terminalreporter.getreports("passed"):
        for name, value in report.user_properties:
            if name == PROPERTY:
                terminalreporter.write_line(f"{report.nodeid}: {value}")
