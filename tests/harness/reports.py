"""Reports of fault runs, one JSON file each, and the table of them in docs/testing.md."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

import msgspec
from msgspec import Struct

from tests.harness.results import Result, render_counts

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "testing.md"
BEGIN, END = "<!-- fault runs: python -m tests.harness report -->", "<!-- end of the fault runs -->"
HEAD = "| run | seconds | faults | calls | acknowledged | checked | violations |\n|---|---|---|---|---|---|---|"


class Report(Struct, frozen=True):
    """The outcome of a run.

    Attributes:
        repeat: The command that repeats it.
        seconds: From its beginning to its verdict.
        faults: How many of each kind were done.
        calls: Number of client requests or session calls.
        acknowledged: Number of acknowledged messages.
        checked: How many records each rule was applied to.
        violations: The broken rules, with what shows it.
    """

    run: str
    seed: int
    repeat: str
    seconds: float = 0.0
    faults: dict[str, int] = {}
    calls: int = 0
    acknowledged: int = 0
    checked: dict[str, int] = {}
    violations: list[str] = []


def directory() -> Path:
    return Path(os.environ.get("FAULT_REPORTS", ROOT / "build" / "faults"))


def complete_report(begun: Report, result: Result) -> Report:
    return msgspec.structs.replace(
        begun,
        faults=result.fault_kinds,
        calls=result.counts["calls"],
        acknowledged=result.counts["acknowledged"],
        checked=dict(result.checked),
        violations=[f"{rule}: {text}" for rule, text in result.violations],
    )


def write(report: Report) -> None:
    """Writes a report. It replaces the earlier one of the same command."""
    name = re.sub(r"[^\w,.]+", "-", report.repeat.partition("harness ")[2])
    directory().mkdir(parents=True, exist_ok=True)
    (directory() / f"{name}.json").write_bytes(msgspec.json.format(msgspec.json.encode(report)) + b"\n")


def read() -> list[Report]:
    decoded = (msgspec.json.decode(path.read_bytes(), type=Report) for path in directory().glob("*.json"))
    return sorted(decoded, key=lambda report: (report.run, report.repeat))


def table(reports: Iterable[Report]) -> str:
    return "\n".join([HEAD, *map(_make_row, reports)])


def _make_row(report: Report) -> str:
    options = report.repeat.partition(f"{report.run} ")[2]
    checked = "; ".join(f"{rule} {count:,}" for rule, count in report.checked.items())
    violations = f"**{len(report.violations)}**" if report.violations else "none"
    amounts = f"{report.seconds:.0f} | {render_counts(report.faults)} | {report.calls:,} | {report.acknowledged:,}"
    return f"| {report.run} `{options}` | {amounts} | {checked} | {violations} |"


def rewrite(page: str, reports: Iterable[Report]) -> str:
    """Replaces the table between the two marks of a page.

    Raises:
        ValueError: The page lacks the marks.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page lacks the marks {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{table(reports)}\n\n{END}{after}"
