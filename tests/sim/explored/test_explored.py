"""Names, moves and posts with keys: every history of a small world ends well, whatever fails and wherever it stops."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.sim.explored import moves, names, post_keys

slow = pytest.mark.slow
Case = tuple[int, dict[str, Any]]


def of_names(least: int, *kinds: str, faults: int = 0, crashes: int = 0, claims: bool = False) -> Case:
    return least, {"kinds": kinds, "faults": faults, "crashes": crashes, "claims": claims}


NAMES = [
    *(
        of_names(50, kind, faults=faults, crashes=1 - faults, claims=True)
        for kind in ("PUT", "POST", "DELETE")
        for faults in (0, 1)
    ),
    of_names(100, "PUT", "PUT", crashes=1),
    of_names(100, "PUT", "DELETE", crashes=1),
    of_names(100, "PUT", "POST", crashes=1),
    of_names(100, "DELETE", "POST", crashes=1),
    # An answer is lost.
    of_names(1000, "PUT", "POST", faults=1, crashes=1),
    of_names(1000, "DELETE", "POST", faults=1, crashes=1),
    of_names(1000, "PUT", "DELETE", faults=1),
    # Beside a reader by time.
    *(
        of_names(100, kind, "read", faults=faults, crashes=1 - faults)
        for kind in ("PUT", "DELETE")
        for faults in (0, 1)
    ),
]
SLOW_NAMES = [
    of_names(1000, "PUT", "PUT", faults=1, crashes=1),
    of_names(500, "PUT", "PUT", claims=True),
    *(
        of_names(500, *kinds, crashes=1, claims=True)
        for kinds in (("PUT", "DELETE"), ("PUT", "POST"), ("DELETE", "POST"))
    ),
]


@pytest.mark.parametrize(("least", "options"), [*NAMES, *(pytest.param(*one, marks=slow) for one in SLOW_NAMES)])
def test_names(least: int, options: dict[str, Any]) -> None:
    """One value is left of concurrent changes; none is lost, and a client that holds another value is told.

    A reader by time is shown at most one value, and the one that stays.
    """
    states, wrong = names.explore(**options)
    assert wrong == []
    assert states > least


EVENTS = (None, "cancel", "purge", "acknowledge", "release")


def of_moves() -> Iterator[Any]:
    for kind in ("plain", "dedup"):
        for event in EVENTS:
            yield 300, {"processes": 2, "crashes": 1, "event": event, "kind": kind}
            three = {"processes": 3, "crashes": 2, "event": event, "kind": kind}
            yield pytest.param(3000, three, marks=slow)
    # A message was delivered before its post failed: its copy is moved.
    yield 1, {"processes": 1, "crashes": 0, "event": None, "kind": "dedup", "lost": True}


@pytest.mark.parametrize(("least", "options"), [*of_moves()])
def test_moves(least: int, options: dict[str, Any]) -> None:
    """Each message is in one of the queues, once and in order; in a dedup queue, one of two equal messages is."""
    states, wrong = moves.explore(**options)
    assert wrong == []
    assert states > least


@pytest.mark.parametrize(("least", "faults", "crashes"), [(10_000, 1, 1), pytest.param(50_000, 2, 2, marks=slow)])
def test_posts_with_a_key(least: int, faults: int, crashes: int) -> None:
    """With two posts at once the messages are stored once, and no reader misses them."""
    states, wrong = post_keys.explore(posts=2, faults=faults, crashes=crashes)
    assert wrong == []
    assert states > least
