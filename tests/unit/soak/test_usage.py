"""The usage of processes in a soak run: growth is reported, and a constant level is not."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.soak.usage import ALLOWANCES, MEGABYTE, Sample, Usage, find_growth, make_trend, read_usage


def samples(*usages: Usage) -> list[Sample]:
    return [Sample(at, each) for at, each in enumerate(usages)]


def test_the_warm_up_does_not_count() -> None:
    """The medians are those of the first and the last third after the warm-up, and so is the maximum."""
    usages = [Usage(900, 9, 9), *(Usage(size, 5, size) for size in range(10))]
    trends = make_trend(samples(*usages), warm=1)
    assert trends is not None
    assert trends.first == Usage(1, 5, 1)
    assert trends.last == Usage(7, 5, 7)
    assert trends.most == Usage(9, 5, 9)
    assert make_trend(samples(*usages), warm=9) is None


@pytest.mark.parametrize("what", ALLOWANCES)
def test_growth_beyond_the_allowance_is_told(what: str) -> None:
    """A process that has more than twice its usage at the end is reported."""
    level = Usage(400 * MEGABYTE, 200, 100)
    grown = level._replace(**{what: 2 * getattr(level, what)})
    trends = make_trend(samples(*[level] * 5, *[grown] * 5), warm=0)
    assert trends is not None
    (told,) = find_growth("a service", trends, ALLOWANCES)
    assert told.startswith(f"a service: {what} grew from")


def test_a_level_is_not_told() -> None:
    """A constant level, a change within the allowance, or a peak in between is not reported."""
    level = Usage(400 * MEGABYTE, 200, 100)
    more, peak = Usage(440 * MEGABYTE, 230, 110), Usage(4000 * MEGABYTE, 2000, 1000)
    trends = make_trend(samples(*[level] * 4, peak, *[more] * 4), warm=0)
    assert trends is not None
    assert find_growth("a service", trends, ALLOWANCES) == []


PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
print(child.pid, flush=True)
input()
child.communicate(b"\\n")
"""


@pytest.mark.needs_programs
def test_usage_includes_children() -> None:
    """A child's memory, handles and threads count for its parent; a process that has ended has none."""
    with subprocess.Popen([sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        alone, together = read_usage(child), read_usage(parent.pid)
        parent.communicate(b"\n")
    assert alone is not None
    assert together is not None
    assert all(more > part > 0 for more, part in zip(together, alone, strict=True))
    assert together.threads == 1 + alone.threads  # Threads of this process may start and end meanwhile.
    assert read_usage(child) is None
    assert read_usage(parent.pid) is None
