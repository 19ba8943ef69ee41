"""The results of a measure: rows of samples, figures compared with a goal and an aim, notes; as tables and as JSON."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Better = Literal["higher", "lower"]

FOR_THE_PAGE = "For the page:"
"""Begins a note whose table is all that a page shows of a measure with many figures."""


@dataclass(frozen=True)
class Row:
    """One side of a comparison: the same figure from several rounds.

    Attributes:
        samples: One value a round, in ``unit``.
        details: Further medians by name, for people (latencies, CPU per message).
    """

    name: str
    samples: Sequence[float]
    unit: str
    details: dict[str, float] = field(default_factory=dict)

    @property
    def median(self) -> float:
        """The median over the rounds."""
        return statistics.median(self.samples)


@dataclass(frozen=True)
class Verdict:
    """One figure, compared with its goal.

    Attributes:
        samples: The figure of each round. The median counts.
        goal: The value that must be reached; None if the figure is only shown.
        aim: A better value that should be reached.
        better: Whether a higher or a lower figure is the better one.
    """

    name: str
    samples: Sequence[float]
    unit: str = "x"
    goal: float | None = None
    aim: float | None = None
    better: Better = "higher"

    @property
    def value(self) -> float:
        """The median over the rounds."""
        return statistics.median(self.samples)

    @property
    def standing(self) -> str:
        """``aim met``, ``goal met``, ``goal missed``, or an empty text without a goal."""
        if self.goal is None:
            return ""
        if self.aim is not None and self._reaches(self.aim):
            return "aim met"
        return "goal met" if self._reaches(self.goal) else "goal missed"

    def _reaches(self, mark: float) -> bool:
        return self.value >= mark if self.better == "higher" else self.value <= mark


@dataclass(frozen=True)
class Report:
    """All that one measure gave. ``skipped`` says why there is nothing, when there is nothing."""

    name: str
    title: str
    rows: Sequence[Row] = ()
    verdicts: Sequence[Verdict] = ()
    notes: Sequence[str] = ()
    skipped: str = ""
    seconds: float = 0.0

    def as_json(self) -> dict[str, Any]:
        """Returns everything, medians and standings included, for ``--json``."""
        content = asdict(self)
        content["rows"] = [{**asdict(row), "median": row.median} for row in self.rows]
        content["verdicts"] = [{**asdict(v), "value": v.value, "standing": v.standing} for v in self.verdicts]
        return content

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Report:
        """Reads what :meth:`as_json` returns."""
        rows = [Row(row["name"], row["samples"], row["unit"], row["details"]) for row in content["rows"]]
        fields = ("name", "samples", "unit", "goal", "aim", "better")
        verdicts = [Verdict(**{field: verdict[field] for field in fields}) for verdict in content["verdicts"]]
        plain = {field: content[field] for field in ("name", "title", "notes", "skipped", "seconds")}
        return cls(rows=rows, verdicts=verdicts, **plain)

    def as_text(self) -> str:
        """Returns everything as Markdown."""
        skipped = [f"SKIPPED: {self.skipped}"] if self.skipped else []
        parts = [f"## {self.name}: {self.title}", *skipped, *self.tables()]
        return "\n\n".join(parts) + f"\n\n({self.seconds:.0f} s)\n"

    def tables(self) -> list[str]:
        """Returns the tables and the notes as Markdown, aligned so that a terminal shows them well too."""
        parts = []
        if self.rows:
            parts.append(table(["side", "median", "lowest to highest", ""], [row_cells(row) for row in self.rows]))
        if self.verdicts:
            parts.append(
                table(["figure", "median", "lowest to highest", "goal", ""], map(verdict_cells, self.verdicts))
            )
        if self.notes:
            parts.append("\n".join(f"* {note}" for note in self.notes))
        return parts


def paired(over: Sequence[float], under: Sequence[float]) -> list[float]:
    """Returns the ratio of two sides round by round: what moves both sides of a round cancels out."""
    return [a / b if b else math.inf for a, b in zip(over, under, strict=True)]


def number(value: float) -> str:
    """Writes a figure with three significant digits or, from 100 on, as a grouped integer."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def span(samples: Sequence[float]) -> str:
    """Writes the lowest and the highest of several samples; nothing for a single one."""
    return f"{number(min(samples))} to {number(max(samples))}" if len(samples) > 1 else ""


def row_cells(row: Row) -> list[str]:
    """Returns the cells of one row."""
    details = ", ".join(f"{name} {number(value)}" for name, value in row.details.items())
    return [row.name, f"{number(row.median)} {row.unit}", span(row.samples), details]


def verdict_cells(verdict: Verdict) -> list[str]:
    """Returns the cells of one verdict."""
    sign = "≥" if verdict.better == "higher" else "≤"
    asked = "" if verdict.goal is None else f"{sign} {number(verdict.goal)}"
    if verdict.aim is not None:
        asked += f", aim {number(verdict.aim)}"
    shown = f"{number(verdict.value)} {verdict.unit}"
    return [verdict.name, shown, span(verdict.samples), asked, verdict.standing]


def table(head: list[str], rows: Iterable[list[str]]) -> str:
    """Lays cells out as a Markdown table with columns of equal width."""
    lines = [head, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]

    def draw(cells: list[str]) -> str:
        return "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + " |"

    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([draw(head), rule, *map(draw, lines[1:])])
