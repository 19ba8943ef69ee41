"""Queues whose expired messages become dead letters, in simulated histories: none vanishes, whoever stops when."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from msgspec.structs import replace as changed

from queuey.claims import drafts
from queuey.claims.expiry import EndedMessages, due_after, may_expire
from queuey.claims.state import State
from queuey.ids import Position
from queuey.messages import NewMessage, Queue, Record
from queuey.service.claims import expiry_turns
from queuey.service.claims.expiry_turns import ExpiryRequest, ExpiryTurn
from queuey.service.claims.finding import Finder
from queuey.service.expiry import ExpiryRecord, ExpiryRecords, Search
from tests.replacing import replace, replace_in
from tests.sim.expiry.histories import History, KeptStore, violations

HISTORIES = 5
"""Histories of `make test`, beside those that show a mutation."""
MANY = int(os.environ.get("SIM_HISTORIES", "10000"))
"""Histories of the slow test."""
ENOUGH = 3000
"""Histories in which a mechanism that is missing must have been missed."""


def test_no_message_vanishes() -> None:
    """Each is done or becomes a dead letter, once and not before its end; and the record is removed in the end."""
    assert violations(sorted({*range(HISTORIES), *(one.first for one in MUTATIONS.values())})) == []


@pytest.mark.parametrize("kind", ["ordered", "dedup"])
def test_no_message_of_other_kinds_vanishes(kind: str) -> None:
    """The same in ordered and dedup queues."""
    assert violations(range(8), kind) == []


@pytest.mark.slow
@pytest.mark.timeout(12 * 3600)
def test_no_message_vanishes_in_many_histories() -> None:
    """The same in tens of thousands, or as many as ``SIM_HISTORIES`` says."""
    assert [violations(range(MANY), kind) for kind in ("plain", "ordered", "dedup")] == [[], [], []]


def test_histories_are_what_they_should_be() -> None:
    """Messages are posted, done and become dead letters; a seed says everything."""
    histories = [History(seed) for seed in range(5)]
    assert [history.run() for history in histories] == [[]] * len(histories)
    assert sum(len(history.replicas.letters) for history in histories) > 5
    assert sum(len(history.done) for history in histories) > 0
    again = History(3)
    assert (again.run(), again.replicas.letters) == ([], histories[3].replicas.letters)


async def relying_once_stored(
    records: ExpiryRecords, queue: Queue, items: Sequence[NewMessage], *, is_stored: bool = False
) -> None:
    """Checks the record only before the acknowledgement."""
    if is_stored:
        await REAL_RELY(records, queue, items, is_stored=True)


async def relying_before(
    records: ExpiryRecords, queue: Queue, items: Sequence[NewMessage], *, is_stored: bool = False
) -> None:
    """Checks the record only before the message is stored."""
    if not is_stored:
        await REAL_RELY(records, queue, items)


def removing_any(store: KeptStore, record: Record) -> None:
    """Removes a record whatever its version is."""
    store._replicas.records.pop(record.name, None)


def removing_at_once(records: ExpiryRecords, value: ExpiryRecord, began: int) -> bool:
    """Removes records although posts rely on them."""
    return True


def hidden(finder: Finder, state: State) -> None:
    """Reads no messages that have ended."""
    finder.keeps, finder.scanner.split_ended = False, None


def at_once(margin: float) -> int:
    """Gives a message up when its end has come by one clock."""
    return 0


@contextmanager
def without_margin() -> Iterator[None]:
    """Gives messages up too early."""
    with replace(due_after, at_once), replace_in(expiry_turns, due_after, at_once):
        yield


def taking_claims(
    state: State, ended: EndedMessages, is_changed: Callable[[Position], bool], expired: int, room: int
) -> Iterator[Position]:
    """Gives up messages that somebody has claimed."""
    ended.overdue.update(ended.due)
    return may_expire(state, ended, is_changed, expired, room)


def ignoring_the_outbox(request: ExpiryRequest, state: State) -> ExpiryTurn:
    """Takes dead letters for done that are not published."""
    return REAL_RESULT(request, _without_outbox(state))


def _without_outbox(state: State) -> State:
    copy = State.decode(state.encode())
    copy.outbox = {}
    return copy


def only_what_was_seen(records: ExpiryRecords, value: ExpiryRecord, found: Search, took: float) -> int:
    """Waits for the messages that were seen."""
    return REAL_NEXT(records, changed(value, shortest=1 << 30), found, took)


REAL_RELY, REAL_NEXT = ExpiryRecords.rely, ExpiryRecords._next
REAL_RESULT = ExpiryRequest.result


@dataclass(frozen=True)
class Mutation:
    """A mechanism that is taken out.

    Attributes:
        breaks: The guarantees of which one fails without it.
        instead: Takes it out.
        first: The history to begin with: one that shows it.
    """

    breaks: tuple[str, ...]
    instead: Callable[[], AbstractContextManager[Any]]
    first: int = 0


MUTATIONS = {
    "the record before the message": Mutation(("E1",), lambda: replace(ExpiryRecords.rely, relying_once_stored), 270),
    "the record at the acknowledgement": Mutation(("E1",), lambda: replace(ExpiryRecords.rely, relying_before), 29),
    "until": Mutation(("E1",), lambda: replace(ExpiryRecords._may_remove, removing_at_once)),
    "removal by version": Mutation(("E1",), lambda: replace(KeptStore.remove_record, removing_any)),
    "the next search": Mutation(("E1",), lambda: replace(ExpiryRecords._next, only_what_was_seen)),
    "reads show messages that have ended": Mutation(("E1",), lambda: replace(Finder._begin, hidden)),
    "S after an end": Mutation(("E3",), without_margin),
    "live claims are left": Mutation(("E3",), lambda: replace_in(drafts, may_expire, taking_claims)),
    "the open outbox": Mutation(("E1",), lambda: replace(ExpiryRequest.result, ignoring_the_outbox), 87),
}


@pytest.mark.parametrize("name", sorted(MUTATIONS))
def test_each_mechanism_is_needed(name: str) -> None:
    """Without any one of them some history breaks a guarantee that it is for."""
    mutation = MUTATIONS[name]
    with mutation.instead():
        found = violations([*range(mutation.first, ENOUGH), *range(mutation.first)], breaking=mutation.breaks)
    assert found
