"""``python -m bench.pages FILE…``: puts results, as ``--json`` wrote them, into the pages; ``--check`` compares them.

A section of ``docs/measurements`` begins with ``### `measure```. Its tables and notes are replaced, and the line that
names the commit; other sentences stay. A measure that a page lists without a section gets one. The table of
``docs/performance.md`` is filled from the same results, and its charts are drawn from it. A line of that page says what
was measured: a release whose contents are others is refused (``--check``).
"""

from __future__ import annotations

import datetime as dt
import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from bench import charts
from bench.results import FOR_THE_PAGE, Report, number
from bench.started.processes import ROOT, contents
from queuey import __version__

FOR_USERS = "performance.md"
SUMMARY: dict[str, Sequence[str]] = {
    "post1": ["queuey"],
    "post100": ["queuey, 1 connections", "queuey, 64 connections"],
    "get100": ["queuey, 4 connections", "queuey, 64 connections"],
    "claim100": ["queuey, limit 100, 4 clients"],
    "claim1": ["queuey", "queuey, one request a message"],
    "keyed": ["1 message, a key"],
    "named": ["PUT, new names"],
    "move": ["moved"],
    "qdo-worker": ["worker, plain, of 1 partition"],
    "cassandra-post1": ["queuey, 1 x 8 threads"],
    "cassandra-post100": ["queuey, 1 connection", "queuey, 64 connections"],
    "cassandra-get100": ["queuey, 64 connections"],
    "cassandra-claim100": ["queuey, limit 100"],
    "cassandra-claim1": ["queuey", "queuey, one request a message"],
    "cassandra-three": ["POST of one, 3 node(s)"],
    "spark-scan": ["queuey"],
    "spark-write": ["queuey"],
}
"""Sides that the table for users shows, in the order of its lines."""
CPU = {
    "server CPU us/message": "{} µs",
    "behind it us/message": " + {} µs",
    "its CPU us/message": ", worker {} µs",
    "CPU µs per row": "{} µs of Spark",
}
"""How the table for users shows the CPU of a message."""

MEASURED = re.compile(r"(?m)^Measured at commit .*$")
BLOCK = re.compile(r"(?ms)^\*\*[^*\n]+\*\* \(`python -m bench ([\w -]+)`\).*?(?=^(?:\*\*|#))")
"""Figures of several measures that people wrote in one block: the sections of these measures replace it."""


class Taken(NamedTuple):
    """A report, and where it comes from."""

    report: Report
    facts: Mapping[str, str]

    @property
    def line(self) -> str:
        """The line of a section that names the commit."""
        day = dt.datetime.fromisoformat(self.facts["date"].removesuffix(" UTC"))
        return f"Commit `{self.facts['commit']}`, {day:%-d %B %Y}, {self.facts['processor']}."

    def section(self, kept: Sequence[str] = ()) -> str:
        """Returns the section of a page, without the heading of the next one."""
        short = [note.removeprefix(FOR_THE_PAGE).strip() for note in self.report.notes if note.startswith(FOR_THE_PAGE)]
        tables = short or self.report.tables()
        parts = [f"### `{self.report.name}`: {self.report.title}", self.line, *kept, *tables]
        return "\n\n".join(parts) + "\n\n"


def read(paths: Sequence[Path]) -> dict[str, Taken]:
    """Reads results; of a measure that was taken several times the last file counts."""
    found: dict[str, Taken] = {}
    for path in paths:
        content = json.loads(path.read_text("utf-8"))
        for one in content["reports"]:
            if not one["skipped"]:
                found[one["name"]] = Taken(Report.from_json(one), content["facts"])
    return found


def page(text: str, taken: Mapping[str, Taken]) -> str:
    """Returns a page with the tables of what was taken."""
    text = BLOCK.sub(lambda block: "" if set(block[1].split()) <= taken.keys() else block[0], text)
    parts = re.split(r"(?m)^(?=##+ )", text)
    there = set()
    for place, part in enumerate(parts):
        if (heading := re.match(r"### `([\w-]+)`", part)) and heading[1] in taken:
            there.add(heading[1])
            parts[place] = taken[heading[1]].section(prose(part))
    listed = dict.fromkeys(re.findall(r"`([\w-]+)`", "".join(re.findall(r"(?m)^\| (`[^|]*) \|", parts_before(parts)))))
    new = "".join(taken[name].section() for name in listed if name in taken and name not in there)
    end = next((place for place, part in enumerate(parts) if part.startswith("## What the figures say")), len(parts))
    return "".join([*parts[:end], new, *parts[end:]])


def parts_before(parts: Sequence[str]) -> str:
    """Returns the page up to its figures: the table of measures is there."""
    return "".join(parts[: next(place for place, part in enumerate(parts) if part.startswith("## Figures"))])


def prose(section: str) -> list[str]:
    """Returns the paragraphs of a section that people wrote."""
    _, *paragraphs = re.split(r"\n\n+", section.strip())
    return [text for text in paragraphs if not text.startswith(("|", "* ", "Commit ", "Measured "))]


def for_users(text: str, taken: Mapping[str, Taken]) -> str:
    """Returns the page of figures for users with those that were taken."""
    sides = {name: iter(rows) for name, rows in SUMMARY.items()}

    whole = [one.facts for name, one in taken.items() if name in SUMMARY]
    if whole and len({facts["commit"] for facts in whole}) == 1 and SUMMARY.keys() <= taken.keys():
        text = MEASURED.sub(lambda _: measured(whole[0]), text)

    def line(match: re.Match[str]) -> str:
        name = match["name"]
        side = next(sides.get(name, iter(())), None)
        if name not in taken or side is None:
            return match[0]
        row = next(row for row in taken[name].report.rows if row.name == side)
        times = [f"{number(row.details[key])} ms" if key in row.details else "" for key in ("p50 ms", "p99 ms")]
        cpu = "".join(form.format(number(row.details[key])) for key, form in CPU.items() if key in row.details)
        cells = [f"{row.median:,.0f}", *times, cpu, f"`{name}`, `{taken[name].facts['commit']}`"]
        return match["begin"] + " | ".join(cells) + " |"

    return re.sub(r"(?m)^(?P<begin>\|[^|\n]*\|[^|\n]*\| )(?:[^|\n]*\|){4} `(?P<name>[\w-]+)`[^|\n]*\|$", line, text)


def measured(facts: Mapping[str, str]) -> str:
    """Returns the line that says what the figures of the page are of."""
    where = f"{facts['date']}, {facts['processor']}"
    return f"Measured at commit `{facts['commit']}` ({where}); contents `{facts['contents']}`."


def complaint(text: str, version: str, found: str) -> str | None:
    """Returns why a version may not be released with the page of figures; None: it may.

    Args:
        text: The page.
        version: The version.
        found: The contents that are released (:func:`~bench.started.processes.contents`).
    """
    said = MEASURED.search(text)
    if ".dev" in version or (said is not None and f"contents `{found}`" in said[0]):
        return None
    return (
        f"The figures of {FOR_USERS} are not of these contents ({found}). Run make bench, then build {version} again."
    )


def main(arguments: Sequence[str], docs: Path = ROOT / "docs") -> None:
    """Writes the pages, and says which measures no page lists."""
    if list(arguments) == ["--check"]:
        sys.exit(complaint((docs / FOR_USERS).read_text("utf-8"), __version__, contents()))
    taken = read([Path(name) for name in arguments])
    written = ""
    for path in [*sorted(docs.glob("measurements/*.md")), docs / FOR_USERS]:
        text = path.read_text("utf-8")
        text = for_users(text, taken) if path.name == FOR_USERS else page(text, taken)
        path.write_text(text, "utf-8")
        written += text
    charts.draw(docs)
    missing = [name for name in taken if f"### `{name}`" not in written]
    if missing:
        print("No page lists " + ", ".join(missing))


if __name__ == "__main__":
    main(sys.argv[1:])
