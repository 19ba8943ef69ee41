"""The walks through the code name what there is. ``tests/bench/test_call_counts.py`` compares them with real runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WALKS = {
    ("walk-post.md", ""): "POST",
    ("walk-read.md", ""): "GET",
    ("walk-claim.md", ""): "claim",
    ("walk-group.md", ""): "fetch to commit",
    ("walk-console.md", ""): "console page",
    ("walk-post.md", "queuey/storage/cassandra/"): "Cassandra append",
    ("walk-read.md", "queuey/storage/cassandra/"): "Cassandra read",
}
"""Operations by the page that walks through them; the second table of a page is about files below a folder."""
UNMEASURED = (("walk-read.md", "A read that waits"), ("walk-group.md", "A heartbeat"))
"""Tables of which only the functions are compared, by page and title."""
ROW = re.compile(r"(?m)^\|[^|\n]*\| `([\w/.]+\.py)` \| (.*) \|$")


def rows_of_walk(page: str, folder: str, title: str = "") -> list[tuple[str, list[tuple[str, str]]]]:
    """Returns (path, functions) of a page's first table, of the one on Cassandra if a folder is given, or by title."""
    first, *others = re.split(r"(?m)^## ", (ROOT / "docs" / page).read_text("utf-8"))
    title = title or ("On Cassandra" if folder else "")
    [table] = [other for other in others if other.startswith(title)] if title else [first]
    return [(folder + file, re.findall(r"`(?:(\w+)\.)?(\w+)`", functions)) for file, functions in ROW.findall(table)]


@pytest.mark.parametrize(
    ("page", "folder", "title"), [*((*walk, "") for walk in WALKS), *((page, "", title) for page, title in UNMEASURED)]
)
def test_a_walk_names_functions_that_exist(page: str, folder: str, title: str) -> None:
    """Each function of a walk is defined in the file beside it."""
    rows = rows_of_walk(page, folder, title)
    assert rows
    for file, functions in rows:
        source = (ROOT / file).read_text("utf-8")
        for owner, function in functions:
            assert f"def {function}(" in source or f"def {function}[" in source, f"{page}: {function} in {file}"
            assert not owner or f"class {owner}" in source, f"{page}: {owner} in {file}"
