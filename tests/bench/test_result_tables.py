"""Tests of the tables that pages show of benchmark results."""

from __future__ import annotations

import json
import re
from pathlib import Path

from bench import pages
from bench.results import Report, Row, Verdict
from bench.started.processes import ROOT

FACTS = {
    "commit": "abcd1234",
    "contents": "0123456789ab",
    "date": "2026-11-23 09:05 UTC",
    "processor": "AMD EPYC, 2 cores",
}
DETAILS = {"p50 ms": 3.5, "p99 ms": 6.25, "server CPU us/message": 58.4, "behind it us/message": 41.0}
PAGE = """# Measurements

| name | measures |
|---|---|
| `post1` | POST |
| `get1`, `get9` | GET |

## Figures

Two processors.

### `post1`: an old title

Measured on 20 November 2026.

What people wrote
stays.

| side | median |
|---|---|
| queuey | 1 |

* An old note.

## What the figures say

* Much.
"""


def results(directory: Path, *names: str) -> dict[str, pages.MeasuredReport]:
    """Returns results of measures, and of ``absent``, which was skipped, read from a file."""
    rows = [Row("queuey", [10, 17617, 20000], "messages/s", DETAILS)]
    reports = [
        Report(name, f"all of {name}", rows, [Verdict("a / b", [4, 2, 3], goal=3)], ["A note."]) for name in names
    ]
    reports.append(Report("absent", "", skipped="no Java"))
    file = directory / "results.json"
    file.write_text(json.dumps({"facts": FACTS, "reports": [report.as_json() for report in reports]}))
    return pages.read_reports([file])


def test_sections_of_measures_are_replaced(tmp_path: Path) -> None:
    """Tables, notes, title and commit are replaced; sentences stay; a listed measure without a section gets one."""
    text = pages.fill_page(PAGE, results(tmp_path, "post1", "get9", "unlisted"))
    section = text[text.index("### `post1`") : text.index("### `get9`")]
    commit = "Commit `abcd1234`, 23 November 2026, AMD EPYC, 2 cores."
    assert section.startswith(f"### `post1`: all of post1\n\n{commit}\n\nWhat people wrote\nstays.\n\n|")
    assert "17,617 messages/s" in section
    assert "old" not in section
    assert "20 November" not in section
    assert text.index("### `get9`") < text.index("## What the figures say")
    assert "unlisted" not in text
    assert pages.fill_page(text, results(tmp_path, "post1", "get9")) == text


def test_each_line_for_users_has_a_side() -> None:
    """The page has as many lines of a measure as the program has sides of it."""
    page = (ROOT / "docs" / pages.PAGE_FOR_USERS).read_text("utf-8")
    lines = re.findall(
        r"(?m)^\|(?:[^|\n]*\|){6} `([\w-]+)`[^|\n]*\|$", page
    )  # with rates and times: not those of memory
    assert {name: lines.count(name) for name in lines} == {name: len(sides) for name, sides in pages.SUMMARY.items()}
