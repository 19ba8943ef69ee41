"""The command ``python -m bench.pages FILE…`` writes results (the files of ``--json``) into the pages of the docs.

A section of ``docs/measurements`` starts with ``### `measure```. Its tables, its notes and the line that names the
commit are replaced; other sentences stay. A measure that a page lists but has no section for gets a new one. The table
of ``docs/performance.md`` is filled from the same results. One line of that page
names the contents that were measured; ``--check`` exits with an error if a release has other contents.
"""

from __future__ import annotations

import datetime as dt
import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from bench.results import Report, format_number
from bench.started.processes import ROOT, hash_product
from queuey import __version__

PAGE_FOR_USERS = "performance.md"
SUMMARY: dict[str, Sequence[str]] = {
    "many": ["POST, random queues", "POST, queues by Zipf's law", "GET, random queues", "GET, queues by Zipf's law"],
    "post1": ["queuey"],
    "post100": ["queuey, 1 connections", "queuey, 64 connections"],
    "get100": ["queuey, 4 connections", "queuey, 64 connections"],
    "claim100": ["queuey, limit 100, 4 clients"],
    "claim1": ["queuey", "queuey, one request a message"],
    "keyed": ["1 message, a key"],
    "named": ["PUT, new names"],
    "move": ["moved"],
    "qdo-worker": ["worker, plain, of 1 partition"],
    "cassandra-post1": ["queuey, 64 connections"],
    "cassandra-post100": ["queuey, 1 connection", "queuey, 64 connections"],
    "cassandra-get100": ["queuey, 64 connections"],
    "cassandra-claim100": ["queuey, limit 100"],
    "cassandra-claim1": ["queuey", "queuey, one request a message"],
    "cassandra-three": ["POST of one, 3 node(s)"],
    "spark-scan": ["queuey"],
    "spark-write": ["queuey"],
}
"""Sides of each measure that the table for users shows, in the order of its rows."""
CPU_FORMATS = {
    "server CPU us/message": "{} µs",
    "behind it us/message": " + {} µs",
    "its CPU us/message": ", worker {} µs",
    "CPU µs per row": "{} µs of Spark",
}
"""How the table for users formats the CPU per message."""

MEASURED_LINE = re.compile(r"(?m)^Measured at commit .*$")


class MeasuredReport(NamedTuple):
    report: Report
    facts: Mapping[str, str]

    @property
    def line(self) -> str:
        day = dt.datetime.fromisoformat(self.facts["date"].removesuffix(" UTC"))
        return f"Commit `{self.facts['commit']}`, {day:%-d %B %Y}, {self.facts['processor']}."

    def make_section(self, kept: Sequence[str] = ()) -> str:
        """Returns the section as Markdown; ``kept`` are the paragraphs to keep."""
        parts = [f"### `{self.report.name}`: {self.report.title}", self.line, *kept, *self.report.tables()]
        return "\n\n".join(parts) + "\n\n"


def read_reports(paths: Sequence[Path]) -> dict[str, MeasuredReport]:
    """Reads results by the names of their measures; if several files have a measure, the last one wins.

    Leaves out skipped measures.
    """
    reports: dict[str, MeasuredReport] = {}
    for path in paths:
        content = json.loads(path.read_text("utf-8"))
        for report in content["reports"]:
            if not report["skipped"]:
                reports[report["name"]] = MeasuredReport(Report.from_json(report), content["facts"])
    return reports


def fill_page(text: str, reports: Mapping[str, MeasuredReport]) -> str:
    """Returns the page with the section of each measure replaced; its hand-written sentences stay.

    Listed measures without a section get one before "What the figures say".
    """
    parts = re.split(r"(?m)^(?=##+ )", text)
    present = set()
    for index, part in enumerate(parts):
        if (heading := re.match(r"### `([\w-]+)`", part)) and heading[1] in reports:
            present.add(heading[1])
            parts[index] = reports[heading[1]].make_section(find_prose(part))
    listed = dict.fromkeys(re.findall(r"`([\w-]+)`", "".join(re.findall(r"(?m)^\| (`[^|]*) \|", parts_before(parts)))))
    new = "".join(reports[name].make_section() for name in listed if name in reports and name not in present)
    end = next((index for index, part in enumerate(parts) if part.startswith("## What the figures say")), len(parts))
    return "".join([*parts[:end], new, *parts[end:]])


def parts_before(parts: Sequence[str]) -> str:
    """Returns the text before the section "Figures", which lists the measures of the page."""
    return "".join(parts[: next(place for place, part in enumerate(parts) if part.startswith("## Figures"))])


def find_prose(section: str) -> list[str]:
    _, *paragraphs = re.split(r"\n\n+", section.strip())
    return [text for text in paragraphs if not text.startswith(("|", "* ", "Commit ", "Measured "))]


def fill_page_for_users(text: str, reports: Mapping[str, MeasuredReport]) -> str:
    """Returns the page for users with the rows of the taken measures filled, in the order of :data:`SUMMARY`.

    The line of the measured contents changes only if all measures of the table have the same contents.
    """
    sides = {name: iter(rows) for name, rows in SUMMARY.items()}

    summary_facts = [t.facts for name, t in reports.items() if name in SUMMARY]
    if summary_facts and len({facts["contents"] for facts in summary_facts}) == 1 and SUMMARY.keys() <= reports.keys():
        text = MEASURED_LINE.sub(lambda _: measured_line(summary_facts[0]), text)

    def line(match: re.Match[str]) -> str:
        name = match["name"]
        side = next(sides.get(name, iter(())), None)
        if name not in reports or side is None:
            return match[0]
        row = next(row for row in reports[name].report.rows if row.name == side)
        times = [f"{format_number(row.details[key])} ms" if key in row.details else "" for key in ("p50 ms", "p99 ms")]
        cpu = "".join(
            form.format(format_number(row.details[key])) for key, form in CPU_FORMATS.items() if key in row.details
        )
        cells = [f"{row.median:,.0f}", *times, cpu, f"`{name}`, `{reports[name].facts['commit']}`"]
        return match["begin"] + " | ".join(cells) + " |"

    return re.sub(r"(?m)^(?P<begin>\|[^|\n]*\|[^|\n]*\| )(?:[^|\n]*\|){4} `(?P<name>[\w-]+)`[^|\n]*\|$", line, text)


def measured_line(facts: Mapping[str, str]) -> str:
    run = f"{facts['date']}, {facts['processor']}"
    return f"Measured at commit `{facts['commit']}` ({run}); contents `{facts['contents']}`."


def refusal_reason(text: str, version: str, digest: str) -> str | None:
    """Returns why a version must not be released with this page of figures, or None if it may be.

    A development version always may.

    Args:
        text: The page.
        version: The version.
        digest: The hash of the contents to release (:func:`~bench.started.processes.hash_product`).
    """
    measured_line = MEASURED_LINE.search(text)
    if ".dev" in version or (measured_line is not None and f"contents `{digest}`" in measured_line[0]):
        return None
    return (
        f"The figures of {PAGE_FOR_USERS} are not of these contents ({digest}). "
        f"Run make bench, then build {version} again."
    )


def main(arguments: Sequence[str], docs: Path = ROOT / "docs") -> None:
    """Writes the pages, and prints the measures that no page lists; ``--check`` only checks."""
    if list(arguments) == ["--check"]:
        sys.exit(refusal_reason((docs / PAGE_FOR_USERS).read_text("utf-8"), __version__, hash_product()))
    taken = read_reports([Path(name) for name in arguments])
    written = ""
    for path in [*sorted(docs.glob("measurements/*.md")), docs / PAGE_FOR_USERS]:
        text = path.read_text("utf-8")
        text = fill_page_for_users(text, taken) if path.name == PAGE_FOR_USERS else fill_page(text, taken)
        path.write_text(text, "utf-8")
        written += text
    missing = [name for name in taken if f"### `{name}`" not in written]
    if missing:
        print("No page lists " + ", ".join(missing))


if __name__ == "__main__":
    main(sys.argv[1:])
