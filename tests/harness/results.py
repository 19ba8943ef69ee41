"""The result of a run: broken rules, what was checked, and counts that tell whether the run means anything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tests.harness.history import Fault

MAX_VIOLATIONS_SHOWN = 12
"""Max violations printed for a failed run. The records hold the others."""
MAX_FAULTS_SHOWN = 60


class Violation(NamedTuple):
    """A broken rule, and the text that shows it."""

    rule: str
    text: str


class Result(NamedTuple):
    """The result of a finished run.

    Attributes:
        violations: Broken rules.
        counts: Numbers by name. Always has ``calls`` and ``acknowledged``.
        checked: How many records each rule was applied to.
        faults: The faults that were done.
        notes: More text to print if the run fails.
        history: The records, in order.
    """

    violations: Sequence[Violation]
    counts: Mapping[str, int]
    checked: Mapping[str, int]
    faults: Sequence[Fault]
    notes: str = ""
    history: Any = None

    @property
    def fault_kinds(self) -> dict[str, int]:
        return count_kinds(self.faults)

    def explain(self) -> str:
        """Renders the violations (the first of each rule ahead of the others), counts, faults and notes.

        Shows only some violations, and only the last faults.
        """
        first = {violation.rule: violation for violation in reversed(self.violations)}.values()
        shown = [*first, *(violation for violation in self.violations if violation not in first)][:MAX_VIOLATIONS_SHOWN]
        faults = [f"{one.start:.3f}..{one.end:.3f} {one.kind} {one.target}" for one in self.faults[-MAX_FAULTS_SHOWN:]]
        lines = [f"{len(self.violations)} violations", *(f"{rule}: {text}" for rule, text in shown)]
        return "\n".join([*lines, render_counts(self.counts), *faults, self.notes])


def count_kinds(faults: Sequence[Fault]) -> dict[str, int]:
    """Counts faults by kind, without stalls."""
    return dict(sorted(Counter(fault.kind for fault in faults if fault.kind != "stall").items()))


def render_counts(numbers: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {name.replace('_', ' ')}" for name, number in numbers.items() if number) or "none"


def too_few(counts: Mapping[str, int], least: Mapping[str, int]) -> list[str]:
    """Returns a text for each count below its minimum; a missing count is 0."""
    return [
        f"{name}: {counts.get(name, 0)}, not {number} or more"
        for name, number in least.items()
        if counts.get(name, 0) < number
    ]
