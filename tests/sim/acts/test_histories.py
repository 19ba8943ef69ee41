"""Jobs that operators cancel and hasten, in histories: no cancelled one is given, and no other one is lost."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

import pytest

from queuey.claims.drafts import EntryDraft
from queuey.claims.entries import Entry
from queuey.claims.state import State
from queuey.ids import Position
from tests.replacing import replace
from tests.sim.storm import find_violations
from tests.sim.web import Setup

HISTORIES, MAX_HISTORIES = 25, 4000
"""Histories of each setup besides those that show a mutation, and max histories until a missing mechanism shows."""
PLAIN = Setup(kinds=("plain",), cancelling=0.4, failing=0.3)
SETUPS = {
    "plain": PLAIN,
    "dedup": Setup(kinds=("dedup",), cancelling=0.4),
    "ordered": Setup(kinds=("ordered",), cancelling=0.4, failing=0.3),
    "limited": Setup(kinds=("plain",), per_key=1, share=2, cancelling=0.4),
}


@pytest.mark.parametrize("name", SETUPS)
def test_guarantees(name: str) -> None:
    """Whatever fails, a cancelled message is not given to a later request, and all guarantees hold for the others."""
    showing = (one.first for one in MUTATIONS.values() if SETUPS[name] is PLAIN)
    assert find_violations(sorted({*range(HISTORIES), *showing}), SETUPS[name]) == []


def apply_without_marks(state: State, number: int, entry: Entry) -> None:
    REAL_APPLY(state, number, entry)
    state.cancelled = set()


def encode_without_marks(state: State) -> bytes:
    marks, state.cancelled = state.cancelled, set()
    try:
        return REAL_ENCODE(state)
    finally:
        state.cancelled = marks


def let_cancelled_be_retried(draft: EntryDraft, position: Position) -> bool:
    """Lets a failed attempt at a cancelled message be retried or become a dead letter."""
    return False


def may_redeliver_despite_mark(draft: EntryDraft, position: Position, most: int = 0) -> bool:
    marks, draft._state.cancelled = draft._state.cancelled, set()
    try:
        return REAL_MAY_AGAIN(draft, position, most)
    finally:
        draft._state.cancelled = marks


REAL_APPLY, REAL_ENCODE, REAL_MAY_AGAIN = State.apply, State.encode, EntryDraft._may_redeliver


@dataclass(frozen=True)
class Mutation:
    """A mechanism that is taken out, and the first history that shows it."""

    instead: Callable[[], AbstractContextManager[None]]
    first: int = 0


MUTATIONS = {
    "the log marks cancelled messages": Mutation(lambda: replace(State.apply, apply_without_marks), first=9),
    "an attempt at a cancelled message that fails ends it": Mutation(
        lambda: replace(EntryDraft._end_cancelled, let_cancelled_be_retried), first=24
    ),
    "a message that was read before its mark is not given again": Mutation(
        lambda: replace(EntryDraft._may_redeliver, may_redeliver_despite_mark), first=718
    ),
    "a snapshot marks cancelled messages": Mutation(lambda: replace(State.encode, encode_without_marks), first=986),
}


@pytest.mark.parametrize("name", sorted(MUTATIONS))
def test_each_mechanism_is_needed(name: str) -> None:
    """Without any one of the mechanisms some history gives a cancelled message."""
    mutation = MUTATIONS[name]
    with mutation.instead():
        broken = find_violations(
            [*range(mutation.first, MAX_HISTORIES), *range(mutation.first)], PLAIN, breaking=("cancelled",)
        )
    assert broken, name
