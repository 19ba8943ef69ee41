"""Attempts in histories: only what began counts, and a message whose claim has expired is delivered alone."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass

import pytest
from msgspec.structs import replace as changed

from queuey.claims.drafts import EntryDraft
from queuey.claims.entries import Entry
from queuey.claims.receipts import LastDelivery
from queuey.claims.state import State
from queuey.ids import Position
from tests.replacing import replace
from tests.sim.storm import find_violations
from tests.sim.web import Setup

HISTORIES, MAX_HISTORIES = 20, 4000
"""Histories of each setup besides those that show a mutation, and max histories until a missing mechanism shows."""
MANY = int(os.environ.get("SIM_HISTORIES", "3000"))
"""Histories of the slow test."""
PLAIN = Setup(kinds=("plain",), unbegun=0.7)
SETUPS = {
    "plain": PLAIN,
    "dedup": Setup(kinds=("dedup",), unbegun=0.7),
    "ordered": Setup(kinds=("ordered",), unbegun=0.7),
    "limited": Setup(kinds=("plain",), per_key=1, unbegun=0.7),
    "cancelled": Setup(kinds=("plain",), cancelling=0.3, unbegun=0.7),
    "failing": Setup(kinds=("plain",), failing=0.5),
}


@pytest.mark.parametrize("name", SETUPS)
def test_guarantees(name: str) -> None:
    """Whatever fails, no message has more attempts than allowed, no dead letter fewer, and all guarantees hold."""
    showing = (one.first for one in MUTATIONS.values() if SETUPS[name] is PLAIN)
    assert find_violations(sorted({*range(HISTORIES), *showing}), SETUPS[name]) == []


@pytest.mark.slow
@pytest.mark.timeout(4 * 3600)
@pytest.mark.parametrize("name", SETUPS)
def test_guarantees_in_many_histories(name: str) -> None:
    """The guarantees hold in many more histories."""
    assert find_violations(range(MANY), SETUPS[name]) == []


def applying_as_begun(state: State, number: int, entry: Entry) -> None:
    """Counts every delivery."""
    REAL_APPLY(state, number, entry)
    for claim in state.outstanding.values():
        claim.begun = True


def renewing_nothing_begun(state: State, position: Position, expires: int, now: int) -> None:
    """Does not count the attempt of a claim that was given back and then renewed."""
    claim = state.outstanding.get(position)
    begun = claim is None or claim.begun
    REAL_RENEW(state, position, expires, now)
    if not begun:
        state.outstanding[position].begun = False


def burying_what_was_read(draft: EntryDraft, positions: Iterable[Position], target: str, _most: int) -> None:
    """Makes dead letters by the attempts at the time of the read."""
    for position in filter(draft._may_redeliver, positions):
        draft._make_dead_letter(position, target)


def suspecting_nothing(_state: State, _position: Position) -> bool:
    return False


def suspecting_once(state: State, position: Position) -> bool:
    """Suspects a message only until it is delivered again."""
    claim = state.outstanding.get(position)
    return claim is not None and REAL_SUSPECTED(unsuspecting(state, position, claim), position)


def unsuspecting(state: State, position: Position, claim: LastDelivery) -> State:
    other = State()
    other.resting, other.outstanding = state.resting, {position: changed(claim, suspected=False)}
    return other


def encode_without_marks(state: State) -> bytes:
    before = state.outstanding
    state.outstanding = {
        position: changed(claim, begun=True, suspected=False, uncounted=0) for position, claim in before.items()
    }
    try:
        return REAL_ENCODE(state)
    finally:
        state.outstanding = before


REAL_APPLY, REAL_RENEW, REAL_ENCODE = State.apply, State._renew, State.encode
REAL_SUSPECTED = State.is_suspected


@dataclass(frozen=True)
class Mutation:
    """A mechanism that is taken out, and the first history that shows it."""

    instead: Callable[[], AbstractContextManager[None]]
    first: int = 0


MUTATIONS = {
    "what did not begin does not count": Mutation(lambda: replace(State.apply, applying_as_begun), first=2),
    "a claim that is renewed counts again": Mutation(lambda: replace(State._renew, renewing_nothing_begun), first=444),
    "attempts are counted when the entry is decided": Mutation(
        lambda: replace(EntryDraft.make_dead_letters, burying_what_was_read), first=1768
    ),
    "a claim that ends in silence raises a suspicion": Mutation(
        lambda: replace(State.is_suspected, suspecting_nothing)
    ),
    "a suspicion lasts": Mutation(lambda: replace(State.is_suspected, suspecting_once), first=33),
    "a snapshot has attempts and suspicions": Mutation(lambda: replace(State.encode, encode_without_marks), first=185),
}


@pytest.mark.parametrize("name", sorted(MUTATIONS))
def test_each_mechanism_is_needed(name: str) -> None:
    """Without any one of the mechanisms some history counts an attempt wrongly, or gives a suspect with others."""
    mutation = MUTATIONS[name]
    with mutation.instead():
        seeds = [*range(mutation.first, MAX_HISTORIES), *range(mutation.first)]
        broken = find_violations(seeds, PLAIN, breaking=("limit",))
    assert broken, name
