"""The table of lanes matches the tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.suite.lanes import LANES, PATTERNS

ROOT = Path(__file__).parents[2]
FILES = [str(path.relative_to(ROOT)) for path in sorted((ROOT / "tests").rglob("test_*.py"))]


@pytest.mark.parametrize("lane", LANES)
def test_every_lane_has_tests(lane: str) -> None:
    """Every lane has tests; a stale one would let several processes start the same servers."""
    assert any(PATTERNS[lane].match(f"{file}::test_it[cassandra]") for file in FILES)
