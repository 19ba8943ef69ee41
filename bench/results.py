"""The results of a measure (rows of samples, verdicts against goals, notes), rendered as Markdown tables and JSON."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Better = Literal["higher", "lower"]


@dataclass(frozen=True)
class Row:
    """One side of a comparison: the same figure from several rounds.

    Attributes:
        samples: One value per round, in ``unit``.
        details: Medians of further figures by name, for readers (latencies, CPU per message).
    """

    name: str
    samples: Sequence[float]
    unit: str
    details: dict[str, float] = field(default_factory=dict)

    @property
    def median(self) -> float:
        return statistics.median(self.samples)


@dataclass(frozen=True)
class Verdict:
    """One figure, compared with its goal.

    Attributes:
        samples: One value per round. The median is compared.
        goal: The required value; None if the figure is only shown.
        aim: A better value than the goal, which is desirable.
        better: Whether higher or lower figures are better.
    """

    name: str
    samples: Sequence[float]
    unit: str = "x"
    goal: float | None = None
    aim: float | None = None
    better: Better = "higher"

    @property
    def value(self) -> float:
        return statistics.median(self.samples)

    @property
    def standing(self) -> str:
        """``aim met``, ``goal met`` or ``goal missed``; empty without a goal."""
        if self.goal is None:
            return ""
        if self.aim is not None and self._reaches(self.aim):
            return "aim met"
        return "goal met" if self._reaches(self.goal) else "goal missed"

    def _reaches(self, mark: float) -> bool:
        return self.value >= mark if self.better == "higher" else self.value <= mark


@dataclass(frozen=True)
class Report:
    """All results of one measure. ``skipped`` gives the reason if the measure did not run."""

    name: str
    title: str
    rows: Sequence[Row] = ()
    verdicts: Sequence[Verdict] = ()
    notes: Sequence[str] = ()
    skipped: str = ""
    seconds: float = 0.0

    def as_json(self) -> dict[str, Any]:
        """Returns all fields plus medians and standings, for ``--json``."""
        content = asdict(self)
        content["rows"] = [{**asdict(row), "median": row.median} for row in self.rows]
        content["verdicts"] = [{**asdict(v), "value": v.value, "standing": v.standing} for v in self.verdicts]
        return content

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Report:
        rows = [Row(row["name"], row["samples"], row["unit"], row["details"]) for row in content["rows"]]
        fields = ("name", "samples", "unit", "goal", "aim", "better")
        verdicts = [Verdict(**{field: verdict[field] for field in fields}) for verdict in content["verdicts"]]
        plain = {field: content[field] for field in ("name", "title", "notes", "skipped", "seconds")}
        return cls(rows=rows, verdicts=verdicts, **plain)

    def as_text(self) -> str:
        skipped = [f"SKIPPED: {self.skipped}"] if self.skipped else []
        parts = [f"## {self.name}: {self.title}", *skipped, *self.tables()]
        return "\n\n".join(parts) + f"\n\n({self.seconds:.0f} s)\n"

    def tables(self) -> list[str]:
        """Returns the tables and the notes as Markdown, aligned for terminals."""
        parts = []
        if self.rows:
            parts.append(
                format_table(["side", "median", "lowest to highest", ""], [row_cells(row) for row in self.rows])
            )
        if self.verdicts:
            parts.append(
                format_table(["figure", "median", "lowest to highest", "goal", ""], map(verdict_cells, self.verdicts))
            )
        if self.notes:
            parts.append("\n".join(f"* {note}" for note in self.notes))
        return parts


def pairwise_ratios(over: Sequence[float], under: Sequence[float]) -> list[float]:
    """Returns the ratios of two sides round by round, so that slow and fast rounds cancel out; infinite over 0."""
    return [a / b if b else math.inf for a, b in zip(over, under, strict=True)]


def format_number(value: float) -> str:
    """Formats a figure with three significant digits, or as a grouped integer from 100 on."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def format_span(samples: Sequence[float]) -> str:
    return f"{format_number(min(samples))} to {format_number(max(samples))}" if len(samples) > 1 else ""


def row_cells(row: Row) -> list[str]:
    details = ", ".join(f"{name} {format_number(value)}" for name, value in row.details.items())
    return [row.name, f"{format_number(row.median)} {row.unit}", format_span(row.samples), details]


def verdict_cells(verdict: Verdict) -> list[str]:
    sign = "≥" if verdict.better == "higher" else "≤"
    goal = "" if verdict.goal is None else f"{sign} {format_number(verdict.goal)}"
    if verdict.aim is not None:
        goal += f", aim {format_number(verdict.aim)}"
    value = f"{format_number(verdict.value)} {verdict.unit}"
    return [verdict.name, value, format_span(verdict.samples), goal, verdict.standing]


def format_table(head: list[str], rows: Iterable[list[str]]) -> str:
    lines = [head, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]

    def draw(cells: list[str]) -> str:
        return "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + " |"

    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([draw(head), rule, *map(draw, lines[1:])])
