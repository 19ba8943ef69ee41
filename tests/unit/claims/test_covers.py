"""What the log of a dedup queue records about copies."""

from __future__ import annotations

from collections.abc import Sequence

from queuey import ids
from queuey.claims.covers import CoverDraft, ScanDuplicates, compute_body_digest, split_duplicates
from queuey.claims.drafts import EntryDraft
from queuey.claims.entries import CoverChanges, Entry, decode_entry, encode_entry
from queuey.claims.polls import Poll
from queuey.claims.state import ClaimTiming, State
from queuey.ids import Position
from queuey.messages import Message

NOW = 1_000_000_000_000
"""A start time, in milliseconds since 1970."""
A, B = compute_body_digest("a", None), compute_body_digest("b", None)


def at(number: int) -> Position:
    return number, 0


def messages(*numbers: int, body: str = "a") -> list[Message]:
    return [Message(number, 0, 1, 0, body) for number in numbers]


def deliver(
    state: State, seen: Sequence[Message], *, until: int, bound: int = 0, now: int = NOW, delete: bool = False
) -> tuple[list[int], Entry]:
    """Delivers messages of a scan and of earlier claims, and applies the entry; returns their numbers and the entry.

    Fails if the state is another one after encoding.
    """
    copies = ScanDuplicates()
    unknown = [message for message in seen if not state.is_known(message.position)]
    fresh, _ = split_duplicates(state.covers, copies, unknown, {})
    draft = EntryDraft(state, now, ClaimTiming(), CoverDraft(state.covers, copies, until))
    poll = Poll(100, 30.0, 1 << 20)
    again = [one for one in seen if state.has_ended(one.position, draft.expired)]
    draft.deliver([poll], again, fresh)
    draft.advance(at(bound) if bound else ids.FIRST, [one.position for one in seen], delete=delete)
    entry = decode_entry(encode_entry(draft.make_entry(7)))
    state.apply(state.number + 1, entry)
    copy = State.decode(state.encode())
    assert copy.encode() == state.encode()
    assert copy.covers.unconfirmed == state.covers.unconfirmed
    assert copy.weight == state.weight
    return [message.ticks for message in poll.given], entry


def test_copies_that_are_held() -> None:
    """Above the bound the messages that the scan has shown are covered."""
    state = State()
    [delivered, entry] = deliver(state, messages(10, 60, 70), until=50)
    assert delivered == [10]
    assert entry.covers == CoverChanges([(A, at(10), [at(60), at(70)])], 50)
    assert deliver(state, messages(60, 65, 70), until=50)[0] == [65]
    assert state.covers.by_digest[A].held == (at(60), at(70))
    assert deliver(state, messages(60, 65, 70), until=66)[0] == []


def test_stored_covers() -> None:
    """Covers that an entry names leave the state; then the store is asked, only for digests that may be stored."""
    state = State()
    deliver(state, messages(10, 40), until=50, bound=15)
    deliver(state, messages(20, 45, body="b"), until=50, bound=15)
    covers = state.covers.find_storable(state.cursor, state.number)
    assert covers == [(A, 50)]
    draft = EntryDraft(state, NOW, ClaimTiming(), CoverDraft(state.covers, ScanDuplicates(), 50))
    state.apply(3, draft.make_entry(7, stored=(state.number, state.cursor)))
    assert (list(state.covers.by_digest), state.covers.stored_until, state.covers.version) == ([B], 50, 3)
    copies = ScanDuplicates()
    assert split_duplicates(state.covers, copies, messages(40, 60), None) == ([], {A: None})
    fresh, lookups = split_duplicates(state.covers, copies, messages(40, 60), dict(covers))
    assert ([one.ticks for one in fresh], lookups) == ([60], ())
    assert split_duplicates(state.covers, ScanDuplicates(), messages(70), None)[0] == messages(70)
    deliver(state, messages(20, body="b"), until=50, bound=60)
    assert state.covers.stored_until == 0
