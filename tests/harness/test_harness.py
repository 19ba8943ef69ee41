"""The reports of fault runs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import msgspec
import pytest

from tests.harness import reports
from tests.harness.history import Fault
from tests.harness.plans import Plan, verify
from tests.harness.results import Result, Violation

PLAN = Plan(7, "kill,pause", 60.0, slow=True, run="messages/cassandra")
GOOD = Result([], {"calls": 3, "acknowledged": 2}, {"lost": 2}, [Fault(1, 2, "kill", "web-1"), Fault(1, 2, "stall")])


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FAULT_REPORTS", str(tmp_path / "reports"))
    return tmp_path / "reports"


def break_off() -> Result:
    raise AssertionError("it broke off")


@pytest.mark.parametrize(
    ("run", "least", "problem"),
    [
        (lambda: GOOD, {}, ""),
        (lambda: GOOD._replace(violations=[Violation("lost", "m1 is gone")]), {}, "lost: m1 is gone"),
        (lambda: GOOD, {"kill": 2}, "kill: 1, not 2 or more"),
        (break_off, {}, "it broke off"),
    ],
    ids=["good", "violation", "too little", "broken off"],
)
def test_a_run_is_reported(run: Callable[[], Result], least: dict[str, int], problem: str, directory: Path) -> None:
    """A run writes a report, which its next run replaces; a broken rule, an error, or too few faults fail it."""
    plan, properties = msgspec.structs.replace(PLAN, least=least), dict[str, object]()
    for _ in range(2):
        with pytest.raises(AssertionError, match=problem) if problem else nullcontext():
            verify(plan, run, properties.__setitem__)
    assert (PLAN.line in str(properties)) == (run is not break_off)
    assert len(list(directory.iterdir())) == 1
    (report,) = reports.read()
    assert (report.run, report.repeat) == (PLAN.run, PLAN.line)
    assert bool(report.violations) == (problem != "" and not least)
    if run is not break_off:
        assert (report.faults, report.calls, report.acknowledged, report.checked) == ({"kill": 1}, 3, 2, {"lost": 2})
