"""Changes of one name: every history of two of them next to a claim, whatever fails and wherever they stop."""

from __future__ import annotations

import pytest

from queuey.storage.cassandra.write.names import NameRow
from tests.replacing import replace_in
from tests.sim.names import Kind, Mutation, explore


@pytest.mark.parametrize("kind", ["PUT", "POST", "DELETE"])
@pytest.mark.parametrize(("faults", "crashes"), [(0, 1), (1, 0)])
def test_every_history(kind: Kind, faults: int, crashes: int) -> None:
    """Whatever fails or stops, a look at the name leaves one value, and a client that holds another one is told."""
    states, wrong = explore((kind,), faults=faults, crashes=crashes)
    assert wrong == []
    assert states > 50


@pytest.mark.parametrize("kinds", [("PUT", "PUT"), ("PUT", "DELETE"), ("PUT", "POST"), ("DELETE", "POST")])
def test_every_history_of_two(kinds: tuple[Kind, ...]) -> None:
    """Of two concurrent changes each comes before or after the other, and none is lost, even if one of them stops."""
    states, wrong = explore(kinds, faults=0, crashes=1, claims=False)
    assert wrong == []
    assert states > 100


@pytest.mark.parametrize(
    ("kinds", "crashes"),
    [
        (("PUT", "POST"), 1),
        (("DELETE", "POST"), 1),
        (("PUT", "DELETE"), 0),
        pytest.param(("PUT", "PUT"), 1, marks=pytest.mark.slow),
    ],
)
def test_every_history_of_two_with_lost_answers(kinds: tuple[Kind, ...], crashes: int) -> None:
    """A change whose answer is lost is repeated, whatever the other one has done since: its value is not removed."""
    states, wrong = explore(kinds, faults=1, crashes=crashes, claims=False)
    assert wrong == []
    assert states > 1000


def test_values_that_may_count_are_not_removed() -> None:
    """If rows of names were final, a change without an answer would remove a present value."""
    with replace_in(NameRow, NameRow.final, by=True):
        _, wrong = explore(("PUT", "POST"), faults=1, crashes=0, claims=False)
    assert wrong


@pytest.mark.parametrize("kind", ["PUT", "DELETE"])
@pytest.mark.parametrize(("faults", "crashes"), [(0, 1), (1, 0)])
def test_every_history_beside_a_reader(kind: Kind, faults: int, crashes: int) -> None:
    """Whatever fails or stops, a reader by time is shown at most one value, and the one that stays."""
    states, wrong = explore((kind, "read"), faults=faults, crashes=crashes, claims=False)
    assert wrong == []
    assert states > 100


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kinds", "crashes"), [(("PUT", "PUT"), 0), (("PUT", "DELETE"), 1), (("PUT", "POST"), 1), (("DELETE", "POST"), 1)]
)
def test_every_history_of_two_beside_a_claim(kinds: tuple[Kind, ...], crashes: int) -> None:
    """Of two concurrent changes none is lost while a caller claims and acknowledges at any moment."""
    states, wrong = explore(kinds, faults=0, crashes=crashes)
    assert wrong == []
    assert states > 500


@pytest.mark.parametrize(
    ("taken", "kinds"),
    [
        ("version not compared", ("PUT", "PUT")),
        ("not in the log", ("PUT",)),
        ("not removed", ("PUT",)),
        ("free too early", ("POST",)),
        ("read before, given after", ("PUT",)),
        ("settled at once", ("PUT",)),
        ("shown unasked", ("PUT", "read")),
    ],
)
def test_without_a_mechanism(taken: Mutation, kinds: tuple[Kind, ...]) -> None:
    """Without any one of the mechanisms some history ends badly."""
    _, wrong = explore(kinds, faults=0, crashes=1, mutation=taken, claims=len(kinds) == 1)
    assert wrong
