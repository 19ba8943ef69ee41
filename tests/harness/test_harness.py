"""The nemesis, plans and reports of fault runs."""

from __future__ import annotations

import threading
from pathlib import Path

import msgspec
import pytest

from tests.faults.webs import Span, draw_waves
from tests.harness import __main__ as command
from tests.harness import plans, reports
from tests.harness.history import Fault, Journal, Records, now
from tests.harness.nemesis import Step, inflict, perform_waves
from tests.harness.plans import RUNS, Plan, verify
from tests.harness.reports import BEGIN, END, Report
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


@pytest.mark.parametrize("kinds", [("kill",), ("pause",), ("cut",), ("cut", "kill", "pause")])
def test_a_seed_fixes_the_schedule(kinds: tuple[str, ...]) -> None:
    """The same seed draws the same faults, of exactly the requested kinds; another seed draws others."""
    waves = schedule(1, *kinds)
    assert waves == schedule(1, *kinds)
    assert waves != schedule(2, *kinds)
    assert {step.kind for wave in waves for step in wave} == set(kinds)
    assert all(waves)


class Victim:
    """Records the names of the methods called on it."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def __getattr__(self, name: str) -> object:
        return lambda: self.done.append(name)


@pytest.mark.parametrize(
    ("kind", "done"),
    [
        ("kill", ["kill", "start"]),
        ("pause", ["pause", "resume"]),
        ("silence", ["silence", "resume"]),
        ("cut", ["cut", "heal"]),
    ],
)
def test_a_fault_is_undone(kind: str, done: list[str]) -> None:
    """Each kind of fault is done to all victims, and then undone."""
    victims = [Victim(), Victim()]
    inflict(kind, victims, 0.0)
    assert [victim.done for victim in victims] == [done, done]


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


def test_records_are_read_while_they_are_written(tmp_path: Path) -> None:
    """Records of several files are read as they arrive; an incomplete line is read later."""
    journals = [Journal(tmp_path / f"{number}.jsonl") for number in range(2)]
    records = Records(tmp_path, Fault)
    faults = [Fault(number, number + 1, "kill", f"web-{number}") for number in range(3)]
    journals[0].add(faults[0])
    assert records.of_kind(Fault) == faults[:1]
    line = msgspec.json.encode(faults[1]) + b"\n"
    with (tmp_path / "1.jsonl").open("ab", buffering=0) as half:
        half.write(line[:9])
        assert records.of_kind(Fault) == faults[:1]
        half.write(line[9:])
    journals[0].add(faults[2])
    assert {fault.target for fault in records.of_kind(Fault)} == {"web-0", "web-1", "web-2"}
    assert records.of_kind(Plan) == []
    for journal in journals:
        journal.close()


def test_every_run_has_a_test() -> None:
    """The test named for a run exists and carries that run out."""
    for run, test in RUNS.items():
        path, _, name = test.partition("::")
        text = (reports.ROOT / path).read_text()
        assert f'"{run}"' in text.partition(f"def {name}(")[0].rpartition("\n\n\n")[2]


def test_a_plan_is_repeated_by_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command names run, seed, faults and seconds, and starts only that run's test with them."""
    called: list[list[str]] = []

    def main(arguments: list[str]) -> int:
        called.append(arguments)
        return 0

    monkeypatch.setenv(plans.PLAN_VARIABLE, "")
    monkeypatch.setattr(pytest, "main", main)
    assert PLAN.line == "python -m tests.harness messages/cassandra --seed 7 --faults kill,pause --seconds 60"
    monkeypatch.chdir(reports.ROOT)
    assert command.main(PLAN.line.split()[3:]) == 0
    assert called == [["-n", "0", "--stall-limit", "7200", RUNS[PLAN.run]]]
    (parameter,) = plans.plans(PLAN.run, Plan(1, "usual"), Plan(2, "usual")).args[1]
    assert parameter.values == (PLAN,)
    assert plans.plans("claims/sqlite", Plan(1, "usual")).args[1] == []
    monkeypatch.delenv(plans.PLAN_VARIABLE)
    (parameter,) = plans.plans(PLAN.run, Plan(1, "usual", slow=True)).args[1]
    assert parameter.values == (Plan(1, "usual", slow=True, run=PLAN.run),)
    assert [mark.name for mark in parameter.marks] == ["slow"]


def test_a_run_is_reported(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run writes a report and prints the command that repeats it; the command's next run replaces the report."""
    properties: dict[str, object] = {}
    for _ in range(2):
        assert verify(PLAN, lambda: GOOD, properties.__setitem__) == GOOD
    assert PLAN.line in capsys.readouterr().out
    assert PLAN.line in str(properties)
    assert len(list(directory.iterdir())) == 1
    (report,) = reports.read()
    assert msgspec.structs.replace(report, seconds=0.0) == Report(
        PLAN.run, 7, PLAN.line, 0.0, {"kill": 1}, calls=3, acknowledged=2, checked={"lost": 2}
    )


@pytest.mark.parametrize(
    ("plan", "result", "problem"),
    [
        (PLAN, GOOD._replace(violations=[Violation("lost", "m1 is gone")]), "lost: m1 is gone"),
        (msgspec.structs.replace(PLAN, least={"kill": 2}), GOOD, "kill: 1, not 2 or more"),
    ],
)
def test_a_failure_names_the_line(plan: Plan, result: Result, problem: str) -> None:
    """A broken rule, or a count below its minimum, fails with the problem and the command that repeats the run."""
    with pytest.raises(AssertionError) as caught:
        verify(plan, lambda: result, lambda name, value: None)
    assert problem in str(caught.value)
    assert plan.line in str(caught.value)
    assert [violation.split(":")[0] for violation in reports.read()[0].violations] == [
        violation.rule for violation in result.violations
    ]


def test_the_table_is_put_between_the_marks() -> None:
    """The page keeps the text around the table; a page without marks is refused."""
    report = Report(PLAN.run, 7, PLAN.line, 61.2, {"kill": 2}, 1234, 99, {"G1": 99, "page": 3})
    page = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    rewritten = reports.rewrite(page, [report, msgspec.structs.replace(report, violations=["G1: x"])])
    options = "`--seed 7 --faults kill,pause --seconds 60`"
    row = f"| messages/cassandra {options} | 61 | 2 kill | 1,234 | 99 | G1 99; page 3 |"
    assert rewritten == f"before\n{BEGIN}\n\n{reports.HEAD}\n{row} none |\n{row} **1** |\n\n{END}\nafter\n"
    assert reports.rewrite(rewritten, []) == f"before\n{BEGIN}\n\n{reports.HEAD}\n\n{END}\nafter\n"
    with pytest.raises(ValueError, match="lacks the marks"):
        reports.rewrite("page", [])
