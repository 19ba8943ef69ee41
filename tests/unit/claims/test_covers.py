"""What the log of a dedup queue says of copies."""

from __future__ import annotations

from collections.abc import Sequence

from queuey import ids
from queuey.claims import (
    ClaimReceipt,
    ClaimTiming,
    CoverDraft,
    Entry,
    EntryDraft,
    Poll,
    ScanDuplicates,
    State,
    decode_entry,
    digest_of,
    encode_entry,
    split_duplicates,
)
from queuey.claims.entries import CoverChanges
from queuey.ids import Position
from queuey.messages import Message
from queuey.service.claims.duplicates import divided

NOW = 1_000_000_000_000
"""Milliseconds since 1970."""
A, B = digest_of("a", None), digest_of("b", None)


def at(number: int) -> Position:
    """The position of the message of a number."""
    return number, 0


def messages(*numbers: int, body: str = "a") -> list[Message]:
    """Messages with equal bodies."""
    return [Message(number, 0, 1, 0, body) for number in numbers]


def entered(
    state: State, seen: Sequence[Message], *, until: int, bound: int = 0, now: int = NOW, delete: bool = False
) -> tuple[list[int], Entry]:
    """Delivers what a scan has shown, and what a claim has left; returns the numbers and the entry."""
    copies = ScanDuplicates()
    unknown = [message for message in seen if not state.is_known(message.position)]
    fresh, _ = split_duplicates(state.covers, copies, unknown, {})
    draft = EntryDraft(state, now, ClaimTiming(), CoverDraft(state.covers, copies, until))
    poll = Poll(100, 30.0, 1 << 20)
    again = [one for one in seen if state.has_ended(one.position, draft.expired)]
    draft.deliver([poll], again, fresh)
    draft.advance(at(bound) if bound else ids.FIRST, [one.position for one in seen], delete=delete)
    entry = decode_entry(encode_entry(draft.entry(7)))
    state.apply(state.number + 1, entry)
    copy = State.decode(state.encode())
    assert copy.encode() == state.encode()
    assert copy.covers.unconfirmed == state.covers.unconfirmed
    assert copy.weight == state.weight
    return [message.ticks for message in poll.given], entry


def test_copies_below_the_bound() -> None:
    """What is posted before a delivery is covered by it, whether the scan has shown it or not, and nothing else."""
    state = State()
    assert entered(state, messages(10, 20), until=50, bound=15)[0] == [10]
    assert state.cursor < at(15)
    assert entered(state, messages(5, 20, 30, 49), until=60)[0] == []
    assert entered(state, messages(20, 50), until=70)[0] == [50]


def test_copies_that_are_held() -> None:
    """Above the bound those are covered that the scan has shown."""
    state = State()
    [given, entry] = entered(state, messages(10, 60, 70), until=50)
    assert given == [10]
    assert entry.covers == CoverChanges([(A, at(10), [at(60), at(70)])], 50)
    assert entered(state, messages(60, 65, 70), until=50)[0] == [65]
    assert state.covers.by_digest[A].held == (at(60), at(70))
    assert entered(state, messages(60, 65, 70), until=66)[0] == []


def test_no_cover_is_longer_needed_than_the_cursor_is_below_it() -> None:
    """Where the cursor passes the bound in the entry of the delivery, nothing is noted; else it is forgotten then."""
    state = State()
    assert entered(state, messages(10, 20), until=50, bound=50)[1].covers is None
    assert entered(state, messages(60, 70), until=90, bound=80)[1].covers == CoverChanges([(A, at(60), [])], 90)
    assert state.covers.count == 1
    assert entered(state, messages(), until=90, bound=90)[0] == []
    assert state.covers.count == 0


def test_a_representative_that_is_gone() -> None:
    """If a chain of reads does not show it below its bound, its copies are delivered; if it is acknowledged, not."""
    for acknowledged in (False, True):
        state = State()
        assert entered(state, messages(10, 20), until=50)[0] == [10]
        assert list(state.covers.unconfirmed) == [at(10)]
        if acknowledged:
            draft = EntryDraft(state, NOW, ClaimTiming())
            draft.acknowledge([ClaimReceipt(1, 10, 0, 1)])
            state.apply(2, draft.entry(7))
        given, entry = entered(state, messages(20), until=50, bound=30)
        assert given == []
        assert entry.covers == (None if acknowledged else CoverChanges(withdrawn=[A]))
        assert (state.cursor >= at(20)) == acknowledged
        assert entered(state, messages(20), until=60)[0] == ([] if acknowledged else [20])


def test_a_representative_that_is_gone_after_the_cursor_has_passed_it() -> None:
    """Its copies are delivered when its claim has ended, or it was delivered as often as may be; its cover ends."""
    state = State()
    assert entered(state, messages(10), until=50, bound=15)[0] == [10]
    assert state.cursor > at(10)
    copy = State.decode(state.encode())
    assert divided(copy, [at(10)], 1) == ([], [at(10)], {at(10)})
    draft = EntryDraft(state, NOW + 60_000, ClaimTiming(), CoverDraft(state.covers, ScanDuplicates(), 60))
    draft.drop([at(10)])
    state.apply(2, draft.entry(7))
    assert state.is_done(at(10))
    assert state.covers.count == 0
    assert entered(state, messages(20, 30), until=60, bound=40)[0] == [20]


def test_a_copy_waits_for_what_it_is_a_copy_of() -> None:
    """The cursor passes a late copy only if the representative, which lies above it, is certainly there."""
    state = State()
    assert entered(state, messages(20), until=50)[0] == [20]
    entered(state, messages(10, 20), until=50, bound=15)
    assert state.cursor < at(10)
    entered(state, messages(10, 20), until=50, bound=25)
    assert state.cursor == ids.preceding(at(25))


def test_stored_covers() -> None:
    """Those that an entry names leave the state; from then on the store is asked, and only for what may be there."""
    state = State()
    entered(state, messages(10, 40), until=50, bound=15)
    entered(state, messages(20, 45, body="b"), until=50, bound=15)
    there = state.covers.storable(state.cursor, state.number)
    assert there == [(A, 50)]
    draft = EntryDraft(state, NOW, ClaimTiming(), CoverDraft(state.covers, ScanDuplicates(), 50))
    state.apply(3, draft.entry(7, stored=(state.number, state.cursor)))
    assert (list(state.covers.by_digest), state.covers.stored_until, state.covers.version) == ([B], 50, 3)
    copies = ScanDuplicates()
    assert split_duplicates(state.covers, copies, messages(40, 60), None) == ([], {A: None})
    fresh, asked = split_duplicates(state.covers, copies, messages(40, 60), dict(there))
    assert ([one.ticks for one in fresh], asked) == ([60], ())
    assert split_duplicates(state.covers, ScanDuplicates(), messages(70), None)[0] == messages(70)
    entered(state, messages(20, body="b"), until=50, bound=60)
    assert state.covers.stored_until == 0
