"""Limits of claims in simulated histories: never more claims at once than allowed, and all is given in the end."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass

import pytest

from queuey.claims.places import FreePlaces, LikelyPlaces, Places
from queuey.claims.state import State
from queuey.ids import Position
from queuey.messages import Message
from queuey.service import Limits
from queuey.service.claims import follow_ups, scans
from queuey.service.claims.follow_ups import MAX_LETTERS
from queuey.service.claims.scans import OrderedScanner
from tests.replacing import replace, replace_in
from tests.sim.storm import find_violations
from tests.sim.test_histories import claiming_at_the_front, passing_what_waits, reading_beyond_the_horizon
from tests.sim.web import Setup

HISTORIES, SHORT, MAX_HISTORIES = 15, 10, 4000
"""Histories of each setup besides those that show a mutation; with short scans; and max histories until a missing
mechanism shows."""
BY_KEY = Setup(kinds=("plain",), per_key=1)
TWO_OF_A_KEY = Setup(kinds=("plain",), per_key=2)
SHARED = Setup(kinds=("plain",), share=2)
SETUPS = {
    "one of a key": BY_KEY,
    "two of a key": TWO_OF_A_KEY,
    "shares": SHARED,
    "both": Setup(kinds=("plain",), per_key=1, share=2),
    "dedup": Setup(kinds=("dedup",), share=1),
    "ordered": Setup(kinds=("ordered",), share=2),
    "failing": dataclasses.replace(TWO_OF_A_KEY, share=2, failing=0.6),
    "forgetting": dataclasses.replace(TWO_OF_A_KEY, limits=Limits(claims_memory=1)),
}


@pytest.fixture(autouse=True)
def _few_at_a_time() -> Iterator[None]:
    """Publishes dead letters one by one."""
    with replace_in(follow_ups, MAX_LETTERS, 1):
        yield


@pytest.mark.parametrize("name", SETUPS)
def test_guarantees(name: str) -> None:
    """Whatever fails, no more messages are claimed at once than allowed, and none is lost or wrongly withheld."""
    showing = (one.first for one in MUTATIONS.values() if one.setup is SETUPS[name])
    assert find_violations(sorted({*range(HISTORIES), *showing}), SETUPS[name]) == []


@pytest.mark.parametrize(("name", "most"), [("MAX_PAGE_MESSAGES", 2), ("MAX_ABOVE", 2), ("MAX_WAITING", 2)])
def test_short_scans(name: str, most: int) -> None:
    """The limits also hold if little is read at a time, or remembered."""
    breaking = ("G", "places", "limit") if name != "MAX_PAGE_MESSAGES" else ("",)
    with replace_in(scans, getattr(scans, name), most):
        assert find_violations(range(SHORT), TWO_OF_A_KEY, breaking=breaking) == []


def giving_all_that_was_read(places: FreePlaces, choice: Callable[[Message], bool] | None, message: Message) -> bool:
    """Ignores the free places when the entry is decided."""
    return choice is None or choice(message)


def always_has_place(places: Places, position: Position) -> bool:
    return True


def count_unlimited_places(places: Places) -> int:
    return 1000


def knowing_no_keys(state: State, positions: list[Position], keys: list[int]) -> None:
    """Records no keys of outstanding messages."""


def encode_without_keys(state: State) -> bytes:
    busy, state.busy = state.busy, {}
    try:
        return REAL_ENCODE(state)
    finally:
        state.busy = busy


def resting_for_good(state: State, position: Position, expires: int, now: int) -> None:
    """Keeps a message resting that was released with a delay, although a worker has resumed it."""
    rested = position in state.resting
    REAL_RENEW(state, position, expires, now)
    if rested:
        state.resting.add(position)


def never_resting(state: State, position: Position, expired: int) -> bool:
    """Counts messages that wait for their delay."""
    claim = state.outstanding.get(position)
    return claim is not None and claim.expires >= expired


def find_no_place_of_busy_key(places: LikelyPlaces, key: int) -> int:
    return 0 if key in places._state.busy else 1


REAL_ENCODE, REAL_RENEW = State.encode, State._renew


@dataclass(frozen=True)
class Mutation:
    """A mechanism that is taken out: how, the rules that fail, the setup, and the first history that shows it."""

    instead: Callable[[], AbstractContextManager[None]]
    breaks: tuple[str, ...] = ("places",)
    setup: Setup = TWO_OF_A_KEY
    first: int = 0


MUTATIONS = {
    "places are counted when the entry is decided": Mutation(
        lambda: replace(FreePlaces.try_take, giving_all_that_was_read), first=122
    ),
    "a claim that begins again needs a place": Mutation(
        lambda: replace(Places.has_place_for, always_has_place), setup=BY_KEY, first=120
    ),
    "a partition has a share of the places": Mutation(
        lambda: replace(Places._count_free_in_partition, count_unlimited_places), setup=SHARED, first=8
    ),
    "the keys of claimed messages are recorded, to count them": Mutation(
        lambda: replace(State._record_keys, knowing_no_keys)
    ),
    "a snapshot has the keys of claimed messages": Mutation(
        lambda: replace(State.encode, encode_without_keys), first=65
    ),
    "a renewal ends a rest": Mutation(lambda: replace(State._renew, resting_for_good), setup=BY_KEY, first=173),
    "a message that waits for its delay takes no place": Mutation(
        lambda: replace(State.is_live, never_resting), ("empty",), BY_KEY, first=289
    ),
    "free places of a busy key are found": Mutation(
        lambda: replace(LikelyPlaces.estimate_for_key, find_no_place_of_busy_key), ("empty",)
    ),
    "queues with limits by key are read below the horizon": Mutation(reading_beyond_the_horizon, ("G6",), first=5),
    "the cursor stays below messages without a place": Mutation(
        lambda: replace(OrderedScanner._make_chain, passing_what_waits), ("G6",)
    ),
    "the front is what this process has read, where keys are limited": Mutation(
        lambda: replace(OrderedScanner._find_start, claiming_at_the_front), ("G6",), first=65
    ),
}


@pytest.mark.parametrize("name", sorted(MUTATIONS))
def test_each_mechanism_is_needed(name: str) -> None:
    """Without any one of the mechanisms some history breaks a guarantee."""
    mutation = MUTATIONS[name]
    seeds = [*range(mutation.first, MAX_HISTORIES), *range(mutation.first)]
    with mutation.instead():
        broken = find_violations(seeds, mutation.setup, breaking=mutation.breaks)
    assert broken, name
