"""Queues whose expired messages become dead letters, in simulated histories: no message vanishes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from msgspec.structs import replace as changed

from queuey.claims import drafts
from queuey.claims.expiry import EndedMessages, find_expirable, ticks_until_due
from queuey.claims.order import Waiting
from queuey.claims.state import State
from queuey.ids import Position
from queuey.messages import NewMessage, Queue, Record
from queuey.service.claims import expiry_turns
from queuey.service.claims.expiry_turns import ExpiryRequest, ExpiryTurn
from queuey.service.claims.finding import Finder
from queuey.service.expiry import ExpiryRecord, ExpiryRecords, Search
from tests.replacing import replace, replace_in
from tests.sim.expiry.histories import History, KeptStore, find_violations

HISTORIES = 5
"""Histories of `make test`, besides those that show a mutation."""
MANY = int(os.environ.get("SIM_HISTORIES", "10000"))
"""Histories of the slow test."""
MAX_HISTORIES = 3000
"""Max histories until a missing mechanism shows."""


def test_no_message_vanishes() -> None:
    """Each message is done or becomes one dead letter after its end, and the record is removed in the end."""
    showing = {mutation.first for mutation in MUTATIONS.values() if mutation.kind == "plain"}
    assert find_violations(sorted({*range(HISTORIES), *showing})) == []


@pytest.mark.parametrize("kind", ["ordered", "dedup"])
def test_no_message_of_other_kinds_vanishes(kind: str) -> None:
    """No message of an ordered or dedup queue vanishes, even if a process read the queue before its log was marked."""
    assert find_violations([*range(8), 10], kind) == []


@pytest.mark.slow
@pytest.mark.timeout(12 * 3600)
def test_no_message_vanishes_in_many_histories() -> None:
    """No message vanishes in tens of thousands of histories, or ``SIM_HISTORIES``."""
    assert [find_violations(range(MANY), kind) for kind in ("plain", "ordered", "dedup")] == [[], [], []]


def test_histories_have_every_outcome() -> None:
    """Messages are posted, done and become dead letters; a seed determines the history."""
    histories = [History(seed) for seed in range(5)]
    assert [history.run() for history in histories] == [[]] * len(histories)
    assert sum(len(history.replicas.letters) for history in histories) > 5
    assert sum(len(history.done) for history in histories) > 0
    again = History(3)
    assert (again.run(), again.replicas.letters) == ([], histories[3].replicas.letters)


async def ensure_expiry_once_stored(
    records: ExpiryRecords, queue: Queue, items: Sequence[NewMessage], *, is_stored: bool = False
) -> None:
    if is_stored:
        await REAL_RELY(records, queue, items, is_stored=True)


async def ensure_expiry_before_store(
    records: ExpiryRecords, queue: Queue, items: Sequence[NewMessage], *, is_stored: bool = False
) -> None:
    """Checks the record only before the message is stored."""
    if not is_stored:
        await REAL_RELY(records, queue, items)


def remove_at_any_version(store: KeptStore, record: Record) -> None:
    store._replicas.records.pop(record.name, None)


def may_remove_at_once(records: ExpiryRecords, value: ExpiryRecord, began: int) -> bool:
    return True


def hide_ended_messages(finder: Finder, state: State) -> None:
    """Does not read messages after their end."""
    finder.includes_ended, finder.scanner.split_ended = False, None


def keep_waiting_messages(waiting: Waiting) -> None:
    """Goes on above the messages that earlier reads did not show."""


def expire_by_one_clock(margin: float) -> int:
    """Expires a message when its end has come by one clock."""
    return 0


@contextmanager
def expire_without_margin() -> Iterator[None]:
    with replace(ticks_until_due, expire_by_one_clock), replace_in(expiry_turns, ticks_until_due, expire_by_one_clock):
        yield


def find_expirable_with_claims(
    state: State, ended: EndedMessages, is_changed: Callable[[Position], bool], expired: int, room: int
) -> Iterator[Position]:
    ended.overdue.update(ended.due)
    return find_expirable(state, ended, is_changed, expired, room)


def make_turn_without_outbox(request: ExpiryRequest, state: State) -> ExpiryTurn:
    return REAL_RESULT(request, _copy_without_outbox(state))


def _copy_without_outbox(state: State) -> State:
    copy = State.decode(state.encode())
    copy.outbox = {}
    return copy


def plan_search_by_seen_messages(records: ExpiryRecords, value: ExpiryRecord, found: Search, took: float) -> int:
    return REAL_NEXT(records, changed(value, shortest=1 << 30), found, took)


REAL_RELY, REAL_NEXT = ExpiryRecords.ensure_expiry, ExpiryRecords._next_due_ticks
REAL_RESULT = ExpiryRequest.result


@dataclass(frozen=True)
class Mutation:
    """A mechanism that is taken out.

    Attributes:
        breaks: The guarantees of which one fails without it.
        instead: Takes it out.
        first: The first history to run. It shows the mutation.
        kind: The kind of the queue.
    """

    breaks: tuple[str, ...]
    instead: Callable[[], AbstractContextManager[Any]]
    first: int = 0
    kind: str = "plain"


MUTATIONS = {
    "the record is there before the message": Mutation(
        ("E1",), lambda: replace(ExpiryRecords.ensure_expiry, ensure_expiry_once_stored), 12
    ),
    "the record is checked again once the message is stored": Mutation(
        ("E1",), lambda: replace(ExpiryRecords.ensure_expiry, ensure_expiry_before_store), 29
    ),
    "a record in force is not removed": Mutation(
        ("E1",), lambda: replace(ExpiryRecords._may_remove, may_remove_at_once)
    ),
    "a record is removed at the version that was read": Mutation(
        ("E1",), lambda: replace(KeptStore.remove_record, remove_at_any_version), 9
    ),
    "the next search comes in time for messages that no search has seen": Mutation(
        ("E1",), lambda: replace(ExpiryRecords._next_due_ticks, plan_search_by_seen_messages), 27
    ),
    "reads show messages that have ended": Mutation(
        ("E1",), lambda: replace(Finder._adapt_to_log, hide_ended_messages)
    ),
    "reads from the cursor once they show messages that have ended": Mutation(
        ("E1",), lambda: replace(Waiting.clear, keep_waiting_messages), 10, "ordered"
    ),
    "a message expires S after its end": Mutation(("E3",), expire_without_margin),
    "live claims are left": Mutation(("E3",), lambda: replace_in(drafts, find_expirable, find_expirable_with_claims)),
    "the next turn comes soon while dead letters are open": Mutation(
        ("E1",), lambda: replace(ExpiryRequest.result, make_turn_without_outbox), 182
    ),
}


@pytest.mark.parametrize("name", sorted(MUTATIONS))
def test_each_mechanism_is_needed(name: str) -> None:
    """Without any one of the mechanisms some history breaks a guarantee."""
    mutation = MUTATIONS[name]
    with mutation.instead():
        seeds = [*range(mutation.first, MAX_HISTORIES), *range(mutation.first)]
        broken = find_violations(seeds, mutation.kind, breaking=mutation.breaks)
    assert broken
