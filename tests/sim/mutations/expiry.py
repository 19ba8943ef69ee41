"""Expiring messages with a mechanism taken out, for the table of mutations in :mod:`tests.sim.mutations.table`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from msgspec.structs import replace as changed

from queuey.claims.expiry_records import ExpiryRecord, ExpiryRecords, ExpirySearch
from queuey.claims.log.expiry_turns import ExpiryRequest
from queuey.claims.log.message_finder import Finder
from queuey.claims.rules.expiry import ExpiredMessages, find_expirable
from queuey.claims.rules.partition_state import State
from queuey.model.ids import Position
from queuey.model.messages import Record
from tests.sim.expiry import KeptStore
from tests.sim.playing import Real


async def ensure_expiry_once_stored(real: Real, *posted: object, is_stored: bool = False) -> None:
    if is_stored:
        await real(*posted, is_stored=True)


async def ensure_expiry_before_store(real: Real, *posted: object, is_stored: bool = False) -> None:
    """Checks the record only before the message is stored."""
    if not is_stored:
        await real(*posted)


def remove_at_any_version(store: KeptStore, record: Record) -> None:
    store._replicas.records.pop(record.name, None)


def hide_expired_messages(finder: Finder, state: State) -> None:
    """Does not read messages after their expiry."""
    finder.includes_expired, finder.scanner.split_expired = False, None


def expire_by_one_clock(margin: float) -> int:
    """Expires a message when its end has come by one clock."""
    return 0


def find_expirable_with_claims(
    state: State, expired: ExpiredMessages, is_changed: Callable[[Position], bool], expiry_limit: int, room: int
) -> Iterator[Position]:
    expired.overdue.update(expired.due)
    return find_expirable(state, expired, is_changed, expiry_limit, room)


def make_turn_without_outbox(real: Real, request: ExpiryRequest, state: State) -> Any:  # noqa: ANN401
    return real(request, _copy_without_outbox(state))


def _copy_without_outbox(state: State) -> State:
    copy = State.decode(state.encode())
    copy.outbox = {}
    return copy


def plan_search_by_seen_messages(
    real: Real, records: ExpiryRecords, value: ExpiryRecord, found: ExpirySearch, took: float
) -> Any:  # noqa: ANN401
    return real(records, changed(value, shortest=1 << 30), found, took)
