"""What a run showed: broken rules, what was checked, and numbers that say whether that is worth anything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tests.harness.history import Fault

VIOLATIONS_TOLD = 12
"""When a run fails; the others are in the records."""
FAULTS_TOLD = 60


class Violation(NamedTuple):
    """A broken rule, and what shows it."""

    rule: str
    text: str


class Result(NamedTuple):
    """A run is over.

    Attributes:
        violations: Of all rules.
        counts: Numbers by name; ``calls`` and ``acknowledged`` are in each.
        checked: How many records each rule was applied to.
        faults: What was done.
        notes: What else is told when a run fails.
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
        """How often each kind of fault was done."""
        return kinds_of(self.faults)

    def explain(self) -> str:
        """Tells the violations, the first of each rule before all others, what was done, and the notes."""
        first = {violation.rule: violation for violation in reversed(self.violations)}.values()
        told = [*first, *(violation for violation in self.violations if violation not in first)][:VIOLATIONS_TOLD]
        faults = [f"{one.start:.3f}..{one.end:.3f} {one.kind} {one.target}" for one in self.faults[-FAULTS_TOLD:]]
        lines = [f"{len(self.violations)} violations", *(f"{rule}: {text}" for rule, text in told)]
        return "\n".join([*lines, listed(self.counts), *faults, self.notes])


def kinds_of(faults: Sequence[Fault]) -> dict[str, int]:
    """Counts faults by kind, without what nobody did."""
    return dict(sorted(Counter(fault.kind for fault in faults if fault.kind != "stall").items()))


def listed(numbers: Mapping[str, int]) -> str:
    """Writes numbers in a line."""
    return ", ".join(f"{number} {name.replace('_', ' ')}" for name, number in numbers.items() if number) or "none"


def too_few(counts: Mapping[str, int], least: Mapping[str, int]) -> list[str]:
    """Tells which numbers are too small for the run to mean anything."""
    return [
        f"{name}: {counts.get(name, 0)}, not {number} or more"
        for name, number in least.items()
        if counts.get(name, 0) < number
    ]
