"""Every measure runs to its end: otherwise pages keep figures that cannot be measured again."""

from __future__ import annotations

import os

import pytest

from bench import measures
from bench.harness import REGISTRY, run_measure
from bench.pages import SUMMARY
from bench.started.processes import ROOT
from tests.servers.plugin import Cassandra


@pytest.mark.slow
@pytest.mark.parametrize("name", REGISTRY)
def test_a_measure_gives_a_report(name: str, cassandra: Cassandra, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each measure, taken quickly, ends with rows; one that needs another tree gets this one."""
    for variable in [variable for variable in os.environ if variable.startswith("QUEUEY_")]:
        monkeypatch.delenv(variable)  # also variables of the tests, which the service does not know
    monkeypatch.setenv(measures.before.BEFORE_VARIABLE, str(ROOT))
    report = run_measure(REGISTRY[name], quick=True, seed=1, node=cassandra)
    if report.skipped:
        pytest.skip(report.skipped)
    assert "|" in report.as_text()
    assert all(row.samples for row in report.rows)
    assert report.rows
    assert set(SUMMARY.get(name, ())) <= {row.name for row in report.rows}
