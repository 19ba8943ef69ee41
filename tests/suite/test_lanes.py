"""The table of lanes matches the tests."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.suite.lanes import LANES, PATTERNS, first_alone, lane_of

ROOT = Path(__file__).parents[2]
FILES = [str(path.relative_to(ROOT)) for path in sorted((ROOT / "tests").rglob("test_*.py"))]


@pytest.mark.parametrize("lane", LANES)
def test_every_lane_has_tests(lane: str) -> None:
    """Every lane has tests; a stale one would let several processes start the same servers."""
    assert any(PATTERNS[lane].match(f"{file}::test_it[cassandra]") for file in FILES)


@pytest.mark.parametrize(
    ("test", "lane"),
    [
        ("tests/contract/read/test_read.py::test_it[cassandra]", "contract on cassandra"),
        ("tests/claims/test_it.py::test_it[cassandra]", "cassandra"),
        ("tests/contract/read/test_read.py::test_it[sqlite]", "tests/contract/read/test_read.py"),
        ("tests/spark/unit/test_arrow_rows.py::test_it", "tests/spark/unit/test_arrow_rows.py"),
    ],
)
def test_lane_of_a_test(test: str, lane: str) -> None:
    """A test is in the lane of its shared servers, or in that of its file."""
    assert lane_of(test) == lane


def test_one_process_is_the_first(tmp_path: Path) -> None:
    """The others start when the first has ended, even by an error, or when they have waited long enough."""
    done, events = tmp_path / "done", list[str]()

    def second() -> None:
        with first_alone(done, "gw1"):
            events.append("second")

    other = threading.Thread(target=second)
    with pytest.raises(OSError, match="broken"), first_alone(done, "gw0"):  # noqa: PT012 - the block is what fails
        other.start()
        other.join(0.3)
        events.append("first")
        raise OSError("broken")
    other.join(60)
    assert events == ["first", "second"]
    with first_alone(tmp_path / "never", "gw1", seconds=0.1):
        events.append("third")
    assert events[-1] == "third"
