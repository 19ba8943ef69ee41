"""Prints the summaries of the fault runs at the end of a test run."""

from __future__ import annotations

import pytest

from tests.harness.plans import SUMMARY_PROPERTY


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for report in terminalreporter.getreports("passed"):
        for name, value in report.user_properties:
            if name == SUMMARY_PROPERTY:
                terminalreporter.write_line(f"{report.nodeid}: {value}")
