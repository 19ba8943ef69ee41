"""The page of figures: its lines, and what new results change on it."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from bench import pages
from bench.results import Report, Row
from bench.started.processes import ROOT, hash_product

DOCS = ROOT / "docs"


def test_results_fill_the_pages(tmp_path: Path) -> None:
    """New results replace a line of the page of figures and a section of the measurements."""
    shutil.copytree(DOCS, tmp_path / "docs", ignore=shutil.ignore_patterns("decisions", "reference"))
    row = Row("queuey", [12_345.0], "messages/s", {"p50 ms": 1.5, "p99 ms": 2.5})
    report = Report("post1", "POST of one message", [row], [], [])
    facts = {"commit": "0123abcd", "contents": "0123456789ab", "date": "2026-11-27 10:00 UTC", "processor": "one"}
    (tmp_path / "results.json").write_text(json.dumps({"facts": facts, "reports": [report.as_json()]}))
    pages.main([str(tmp_path / "results.json")], tmp_path / "docs")
    page = (tmp_path / "docs" / pages.PAGE_FOR_USERS).read_text()
    assert "| post 1 message | 64 | 12,345 | 1.5 ms | 2.5 ms |  | `post1`, `0123abcd` |" in page
    assert "Commit `0123abcd`" in (tmp_path / "docs" / "measurements" / "sqlite.md").read_text()


@pytest.mark.parametrize(
    ("version", "page", "refused"),
    [
        ("0.2.0", "Measured at commit `x`; contents `0123`.", False),
        ("0.2.0", "Measured at commit `x`; contents `4567`.", True),
        ("0.2.0", "No such line: contents `0123`.", True),
        ("0.2.0.dev0", "Measured at commit `x`; contents `4567`.", False),
    ],
)
def test_a_release_has_figures_of_its_own(version: str, page: str, refused: bool) -> None:  # noqa: FBT001 - a column
    """A version without ``.dev`` is refused if the page's figures are of other contents."""
    assert (pages.refusal_reason(f"# Figures\n\n{page}\n", version, "0123") is not None) == refused


def test_contents_are_those_of_the_product(tmp_path: Path) -> None:
    """Another file, name or line changes the hash of the contents; the version and compiled files do not."""
    names = ("queuey/a.py", "qdo/b.py", "cql/c.cql", "constraints.txt")
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text('__version__ = "1"\ntext\n')
    hashes = [hash_product(tmp_path)]
    (tmp_path / "queuey" / "a.py").write_text('__version__ = "2"\ntext\n')
    (tmp_path / "queuey" / "__pycache__").mkdir()
    (tmp_path / "queuey" / "__pycache__" / "a.pyc").write_text("compiled")
    assert hash_product(tmp_path) == hashes[0]
    for name in names:
        (tmp_path / name).write_text("other\n")
        hashes.append(hash_product(tmp_path))
    (tmp_path / "qdo" / "b.py").rename(tmp_path / "qdo" / "d.py")
    hashes.append(hash_product(tmp_path))
    assert len(set(hashes)) == 2 + len(names)


def test_each_line_for_users_has_a_side() -> None:
    """The page has as many lines of a measure as the program has sides of it."""
    page = (DOCS / pages.PAGE_FOR_USERS).read_text("utf-8")
    # Those with rates and times, not those of memory.
    lines = re.findall(r"(?m)^\|(?:[^|\n]*\|){6} `([\w-]+)`[^|\n]*\|$", page)
    assert {name: lines.count(name) for name in lines} == {name: len(sides) for name, sides in pages.SUMMARY.items()}
