"""Every measure runs to its end: otherwise figures stay on the pages that nobody can take again."""

from __future__ import annotations

from functools import partial

import pytest

from tests.bench import measures
from tests.bench.harness import REGISTRY, take
from tests.bench.pages import SUMMARY
from tests.bench.started.processes import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("servers")]


@pytest.mark.parametrize("name", REGISTRY)
def test_a_measure_gives_a_report(name: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each measure, taken quickly, ends with rows; one that needs another tree gets this one."""
    monkeypatch.setenv(measures.before.BEFORE, str(ROOT))
    report = take(REGISTRY[name], quick=True, seed=1, node=partial(request.getfixturevalue, "cassandra"))
    if report.skipped:
        pytest.skip(report.skipped)
    assert "|" in report.as_text()
    assert all(row.samples for row in report.rows)
    assert report.rows
    assert set(SUMMARY.get(name, ())) <= {row.name for row in report.rows}
