"""The nemesis, plans and reports of fault runs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import msgspec
import pytest

from tests.faults.webs import Span, draw_waves
from tests.harness import __main__ as command
from tests.harness import plans, reports
from tests.harness.history import Fault, now
from tests.harness.nemesis import Step, perform_waves
from tests.harness.plans import RUNS, Plan, verify
from tests.harness.results import Result, Violation
from tests.waiting import PATIENCE_SECONDS

PLAN = Plan(7, "kill,pause", 60.0, slow=True, run="messages/cassandra")
GOOD = Result([], {"calls": 3, "acknowledged": 2}, {"lost": 2}, [Fault(1, 2, "kill", "web-1"), Fault(1, 2, "stall")])


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FAULT_REPORTS", str(tmp_path / "reports"))
    return tmp_path / "reports"


def schedule(seed: int, *kinds: str) -> list[tuple[Step, ...]]:
    plan = Plan(seed, ",".join(kinds), 60.0)
    return draw_waves(plan, kinds, ["web-1", "web-2"], ["node-1", "node-2", "node-3"], ["link"], Span(1.0, 2.5), 0.5)


def test_a_seed_fixes_the_schedule() -> None:
    """The same seed draws the same faults, of exactly the requested kinds; another seed draws others."""
    for kinds in (("pause",), ("cut", "kill", "pause")):
        waves = schedule(1, *kinds)
        assert waves == schedule(1, *kinds)
        assert waves != schedule(2, *kinds)
        assert {step.kind for wave in waves for step in wave} == set(kinds)
        assert all(waves)


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


def test_a_plan_is_repeated_by_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command names run, seed, faults and seconds, and starts only that run's test with them."""
    called: list[list[str]] = []
    monkeypatch.setenv(plans.PLAN_VARIABLE, "")
    monkeypatch.setattr(pytest, "main", called.append)
    monkeypatch.chdir(reports.ROOT)
    assert PLAN.line == "python -m tests.harness messages/cassandra --seed 7 --faults kill,pause --seconds 60"
    command.main(PLAN.line.split()[3:])
    assert [arguments[-1] for arguments in called] == [RUNS[PLAN.run]]
    (parameter,) = plans.plans(PLAN.run, Plan(1, "usual"), Plan(2, "usual")).args[1]
    assert parameter.values == (PLAN,)
    assert plans.plans("claims/sqlite", Plan(1, "usual")).args[1] == []


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
