"""The outcome of a compare-and-set of each caller when nodes refuse it, do not answer, or fail for a while."""

from __future__ import annotations

from itertools import pairwise, repeat

import pytest

from queuey.storage.cassandra.lightweight_transactions import FIRST_MAX_PAUSE, MAX_PAUSE, MIN_PAUSE
from queuey.storage.cassandra.options import CassandraOptions
from tests.unit.cassandra.write.changes import CALLERS, Caller, Fate, Scene

LATE = 0.02
"""Seconds by which a simulated thread may be late."""


@pytest.fixture(params=sorted(CALLERS))
def caller(request: pytest.FixtureRequest) -> Caller:
    """A caller that changes a row by compare-and-set."""
    found: Caller = CALLERS[request.param]
    return found


def test_applied_or_refused(caller: Caller) -> None:
    """Without doubts a change is sent once, and another process's change has the caller's usual result."""
    scene = Scene()
    assert scene.change(caller, iter(["rival"])) == caller.refused
    scene = Scene()
    assert scene.change(caller, iter(["well"])) == (caller.lost if caller.repeats else "applied True")
    assert len(scene.attempts) == 1


def test_not_sent(caller: Caller) -> None:
    """A change that certainly was not sent is not sent again, and has the outcome of its earlier attempts."""
    scene = Scene()
    assert scene.change(caller, iter(["none"])) == caller.unsent
    assert len(scene.attempts) == 1


def test_applied_without_an_answer(caller: Caller) -> None:
    """A change that was applied is recognized by its token when it is sent again, also if the node fails by then."""
    scene = Scene()
    assert scene.change(caller, iter(["lost", "none", "well"])) == caller.lost
    assert len(scene.attempts) == (3 if caller.repeats else 1)


def test_in_doubt_then_refused(caller: Caller) -> None:
    """A change that was in doubt when another process changed the row may have been applied before."""
    overtaken = caller.overtaken or caller.refused
    assert Scene().change(caller, iter(["unsent", "rival"])) == (overtaken if caller.repeats else "unknown")


@pytest.mark.parametrize("fates", [["lost", "well"], ["unsent", "rival"]])
def test_in_doubt_and_nobody_can_read(caller: Caller, fates: list[Fate]) -> None:
    """A change in doubt stays in doubt until the row can be read."""
    if not caller.reads_on:
        scene = Scene()
        scene.unreadable = True
        assert scene.change(caller, iter(fates)) != "none"


def test_in_doubt_to_the_end(caller: Caller) -> None:
    """A change that stays in doubt is sent again with growing pauses, for some seconds."""
    scene = Scene()
    assert scene.change(caller, repeat("unsent")) == caller.doubtful
    if not caller.repeats:
        assert len(scene.attempts) == 1
        return
    pauses = [later - before for before, later in pairwise(scene.attempts)]
    bounds = [min(MAX_PAUSE, FIRST_MAX_PAUSE * 2**number) for number in range(len(pauses))]
    assert all(MIN_PAUSE <= pause <= bound + LATE for pause, bound in zip(pauses, bounds, strict=True))
    assert max(pauses) > MAX_PAUSE / 2
    lasted, deadline = scene.attempts[-1] - scene.attempts[0], CassandraOptions().catalogue_deadline
    assert deadline - 2 * MAX_PAUSE < lasted < deadline


def test_a_change_is_made_once_the_node_answers(caller: Caller) -> None:
    """A change is made once the node answers again."""
    scene = Scene()
    assert scene.change(caller, iter(["unsent"] * 4)) == (caller.lost if caller.repeats else "unknown")
    assert len(scene.attempts) == (5 if caller.repeats else 1)


def test_callers_do_not_send_again_in_step() -> None:
    """Pauses are random, from the process's generator."""
    caller, times = CALLERS["create a record"], []
    for _ in range(2):
        scene = Scene()
        scene.change(caller, iter(["unsent"] * 9))
        times.append([later - before for before, later in pairwise(scene.attempts)])
    assert times[0] == times[1]
    assert len({round(pause, 4) for pause in times[0]}) == len(times[0])
