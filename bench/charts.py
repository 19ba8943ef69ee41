"""The command ``python -m bench.charts`` draws the charts of ``docs/performance.md``.

The figures come from the tables of that page and of the measurements pages. A chart only shows figures of one run: of
each table, the rows that were measured together with the first row.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

from bench.started.processes import ROOT

DOCS = ROOT / "docs"
PAGE = "performance.md"
WIDTH, LEFT, RIGHT = 740, 300, 620
"""Width of a chart, and the left and right bounds of its bars, in pixels."""
ROW, TOP, BAR = 26, 62, 16
STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#263238}.h{font-weight:600;font-size:14px}.s{font-size:12px;fill:#546e7a}"
    ".bg{fill:#fff}.ours{fill:#00897b}.other{fill:#90a4ae}.rule{stroke:#cfd8dc}.span{stroke:#80cbc4;stroke-width:5}"
    "@media (prefers-color-scheme:dark){text{fill:#e6edf3}.s{fill:#a7b3bf}.bg{fill:#14181f}.ours{fill:#4db6ac}"
    ".other{fill:#6b7885}.rule{stroke:#37414d}.span{stroke:#2f6d67}}"
)
JOBS = {
    "queuey": "Queuey",
    "skip locked, 10": "SKIP LOCKED on Postgres, 10 connections",
    "skip locked, 1": "SKIP LOCKED on Postgres, 1 connection",
    "celery, prefork": "Celery on Redis",
    "procrastinate": "procrastinate on Postgres",
    "rq": "RQ on Redis",
}
"""The shown sides of the measure ``jobs``, with their labels."""


class Line(NamedTuple):
    """A row of a table of figures; times are in milliseconds, or None if they were not measured."""

    label: str
    rate: float
    p50: float | None
    p99: float | None
    run: str


class Bar(NamedTuple):
    label: str
    value: float
    kind: str = "ours"


def read_lines(page: str, store: str) -> list[Line]:
    """Returns the rows of a store's table that were measured in the same run as its first row."""
    table = page.partition(f"| on {store} |")[2].partition("\n\n")[0]
    rows: list[Line] = []
    operation = ""
    for text in table.splitlines()[2:]:
        cells = [cell.strip() for cell in text.strip("|").split("|")]
        operation = cells[0] or operation
        callers = f" ({cells[1]})" if cells[1] else ""
        run = re.sub(r"^`[\w-]+`,? ", "", cells[6])
        rows.append(
            Line(operation + callers, _parse_number(cells[2]), _parse_time(cells[3]), _parse_time(cells[4]), run)
        )
    return [line for line in rows if line.run == rows[0].run]


def _parse_number(cell: str) -> float:
    return float(cell.replace(",", ""))


def _parse_time(cell: str) -> float | None:
    return float(cell.removesuffix(" ms")) if cell else None


def read_job_bars(page: str, step: str) -> list[Bar]:
    """Returns the rates of a step from the section ``jobs`` for the sides of :data:`JOBS`, highest first."""
    section = page.partition("### `jobs`")[2].partition("\n### ")[0]
    rates = dict(re.findall(r"(?m)^\| ([^|]*?) +\| ([\d,]+) jobs/s", section))
    bars = [
        Bar(label, _parse_number(rates[f"{step}: {side}"]), "ours" if side == "queuey" else "other")
        for side, label in JOBS.items()
    ]
    return sorted(bars, key=lambda bar: -bar.value)


def draw_bar_chart(title: str, groups: Mapping[str, Sequence[Bar]]) -> str:
    """Draws groups of bars. Each group has its own linear scale, on which its highest bar has the full width."""
    parts, y = [], TOP - ROW
    for heading, bars in groups.items():
        highest = max(bar.value for bar in bars)
        parts.append(f'<text class="s" x="16" y="{y + 13}">{escape(heading)}</text>')
        for bar in bars:
            y += ROW
            width = max(2.0, (RIGHT - LEFT) * bar.value / highest)
            parts.append(f'<text x="{LEFT - 10}" y="{y + 13}" text-anchor="end">{escape(bar.label)}</text>')
            parts.append(f'<rect class="{bar.kind}" x="{LEFT}" y="{y}" width="{width:.1f}" height="{BAR}" rx="2"/>')
            parts.append(f'<text x="{LEFT + width + 8:.1f}" y="{y + 13}">{bar.value:,.0f}</text>')
        y += ROW + 14
    return _make_svg(title, parts, y)


def draw_time_chart(title: str, groups: Mapping[str, Sequence[Line]]) -> str:
    """Draws times on a logarithmic scale: a bar from p50 to p99 for each row; leaves out rows without times."""
    shown = [line for group in groups.values() for line in group if line.p50 and line.p99]
    first = math.floor(math.log10(min(line.p50 or 1.0 for line in shown)))
    last = math.ceil(math.log10(max(line.p99 or 1.0 for line in shown)))

    def x(milliseconds: float) -> float:
        return LEFT + (RIGHT - LEFT) * (math.log10(milliseconds) - first) / (last - first)

    parts, y = [], TOP - ROW
    for heading, group in groups.items():
        parts.append(f'<text class="s" x="16" y="{y + 13}">{escape(heading)}</text>')
        for line in group:
            if line.p50 and line.p99:
                y += ROW
                parts.append(f'<text x="{LEFT - 10}" y="{y + 13}" text-anchor="end">{escape(line.label)}</text>')
                parts.append(_draw_span(x(line.p50), x(line.p99), y + 8))
                text = f"{line.p50:g} to {line.p99:g} ms"
                parts.append(f'<text class="s" x="{x(line.p99) + 10:.1f}" y="{y + 13}">{text}</text>')
        y += ROW + 14
    rules = [_draw_rule(x(10.0**power), y, f"{10.0**power:g} ms") for power in range(first, last + 1)]
    return _make_svg(title, [*rules, *parts], y + 20)


def _draw_span(begin: float, end: float, y: int) -> str:
    dots = "".join(f'<circle class="ours" cx="{x:.1f}" cy="{y}" r="5"/>' for x in (begin, end))
    return f'<line class="span" x1="{begin:.1f}" y1="{y}" x2="{end:.1f}" y2="{y}"/>{dots}'


def _draw_rule(x: float, bottom: int, label: str) -> str:
    line = f'<line class="rule" x1="{x:.1f}" y1="{TOP - 8}" x2="{x:.1f}" y2="{bottom - 14}"/>'
    return f'{line}<text class="s" x="{x:.1f}" y="{bottom + 4}" text-anchor="middle">{label}</text>'


def _make_svg(title: str, parts: Sequence[str], height: int) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" aria-labelledby="t">'
    titles = f'<title id="t">{escape(title)}</title>\n<style>{STYLE}</style>'
    background = f'<rect class="bg" width="{WIDTH}" height="{height}" rx="8"/>'
    heading = f'<text class="h" x="16" y="24">{escape(title)}</text>'
    return "\n".join([head, titles, background, heading, *parts, "</svg>", ""])


def _make_rates_drawer(store: str, title: str) -> Callable[[str, str], str]:
    def draw(page: str, _: str) -> str:
        return draw_bar_chart(
            title, {"messages a second (callers)": [Bar(line.label, line.rate) for line in read_lines(page, store)]}
        )

    return draw


def _draw_times(page: str, _: str) -> str:
    stores = {f"on {store} (callers)": read_lines(page, store) for store in ("SQLite", "Cassandra")}
    return draw_time_chart("Time of a request, p50 to p99", stores)


def _draw_jobs(_: str, systems: str) -> str:
    steps = {
        "handled": "tasks that one worker process runs, a second",
        "sends, 1 a call": "tasks sent one by one, a second",
    }
    return draw_bar_chart(
        "Tasks beside other job queues", {text: read_job_bars(systems, step) for step, text in steps.items()}
    )


CHARTS: dict[str, Callable[[str, str], str]] = {
    "performance-sqlite.svg": _make_rates_drawer("SQLite", "Posts and reads on SQLite"),
    "performance-cassandra.svg": _make_rates_drawer("Cassandra", "Posts and reads on Cassandra"),
    "performance-times.svg": _draw_times,
    "performance-tasks.svg": _draw_jobs,
}
"""The function that draws each chart file, from the texts of ``performance.md`` and ``sqlite-systems.md``."""


def write_charts(docs: Path = DOCS) -> None:
    for name, chart in draw_all(docs).items():
        (docs / name).write_text(chart, "utf-8")


def draw_all(docs: Path = DOCS) -> dict[str, str]:
    page, systems = ((docs / name).read_text("utf-8") for name in (PAGE, "measurements/sqlite-systems.md"))
    return {name: chart(page, systems) for name, chart in CHARTS.items()}


if __name__ == "__main__":
    write_charts()
