"""The costs of a large group on Cassandra, as in "What it costs" of the architecture page on groups."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.sim.groups.served.costs import PROCESSES, LargeGroup
from tests.sim.playing import histories

LARGEST = 100_000
"""Max size of a row in bytes."""
SETTLED = 30.0
"""Max seconds from the last of 1,000 joins within 10 s until each partition is at its member."""
HEAD, SEEN, NUMBER = 60, 45, 25
"""Bytes of a head, of a session in a read, and of a target in the state."""


@pytest.mark.parametrize(
    ("members", "queues", "partitions"),
    [
        (50, 10, 50),
        (50, 500, 1),
        pytest.param(1000, 50, 200, marks=[pytest.mark.slow, pytest.mark.timeout(3600)]),
        pytest.param(1000, 10_000, 1, marks=[pytest.mark.slow, pytest.mark.timeout(3600)]),
    ],
)
def test_costs(members: int, queues: int, partitions: int) -> None:
    """Many joins at once settle soon; one join, a leave and restarts cost what the page says."""
    with histories():
        group = LargeGroup(members - 1, queues, partitions)
        assert group.start(10.0) <= SETTLED
        assert max(group.stored.largest.values()) <= LARGEST
        share = -(-group.partitions // members)
        moving = min(queues, share + 1)
        idle = group.count_costs(lambda: None)
        joined = group.count_costs(group.join)
        gone = group.count_costs(group.leave)
        restarted = group.count_costs(lambda: group.restart(3))
    assert group.history.wrong == []
    _check_idle(idle, members)
    assert joined["changes"] <= 3
    assert joined["hand-overs"] <= share + 1 + moving
    assert joined["reads of states"] <= 2 * PROCESSES
    state = members * (group.stored.largest["row of kind 1"] + 10) + NUMBER * group.partitions + 50 * queues
    assert joined["bytes of reads of states"] <= 2 * PROCESSES * state
    assert gone["changes"] <= 2
    assert gone["hand-overs"] <= 2 * moving + PROCESSES
    assert restarted["changes"] <= 3 * 3
    assert restarted["hand-overs"] <= 2 * 3 * moving + 3 * PROCESSES


def _check_idle(counts: Counter[str], members: int) -> None:
    """Checks that waiting heartbeats write once a third of the session, and processes read a head each half second."""
    seconds = 3.0
    assert counts["changes"] == counts["hand-overs"] == counts["reads of states"] == counts["reads of offsets"] == 0
    assert counts["writes"] <= members * (seconds / 3.3 + 1)
    assert counts["reads of heads"] <= PROCESSES * (seconds / 0.5 + 1)
    assert counts["bytes of reads of heads"] == HEAD * counts["reads of heads"]
    assert counts["reads of sessions"] <= PROCESSES * (seconds / 3.3 + 1)
    assert counts["bytes of reads of sessions"] <= SEEN * (members + 2) * counts["reads of sessions"]
