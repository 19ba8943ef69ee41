"""The nemesis, plans and reports of fault runs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import msgspec
import pytest

from tests.harness import reports
from tests.harness.history import Fault, now
from tests.harness.nemesis import Step, perform_waves
from tests.harness.plans import Plan, verify
from tests.harness.results import Result, Violation
from tests.waiting import PATIENCE_SECONDS

PLAN = Plan(7, "kill,pause", 60.0, slow=True, run="messages/cassandra")
GOOD = Result([], {"calls": 3, "acknowledged": 2}, {"lost": 2}, [Fault(1, 2, "kill", "web-1"), Fault(1, 2, "stall")])


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FAULT_REPORTS", str(tmp_path / "reports"))
    return tmp_path / "reports"


def test_waves_follow_one_another() -> None:
    """Faults of a wave start on time and overlap; the next wave starts a rest after all of them are undone."""
    faults: list[Fault] = []
    together = threading.Barrier(2, timeout=60)

    def do(step: Step) -> str:
        if step.target != "c":
            together.wait(PATIENCE_SECONDS)
        return step.target.upper()

    begun = now()
    perform_waves([(Step("kill", "a", at=0.2), Step("pause", "b")), (Step("cut", "c"),)], do, faults.append, rest=0.2)
    assert [(fault.kind, fault.target) for fault in faults[2:]] == [("cut", "C")]
    assert {fault.target for fault in faults[:2]} == {"A", "B"}
    assert next(fault for fault in faults if fault.target == "A").start >= begun + 0.2
    assert faults[2].start >= max(fault.end for fault in faults[:2]) + 0.2
    with pytest.raises(ZeroDivisionError):
        perform_waves([(Step("kill", "a"),)], lambda _: str(1 // 0), faults.append)


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
