"""The state that follows from a claim log, compared with a model that is as simple as possible."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuey.claims.rules.entries import ClaimEntry, UnknownFormat, decode_entry, encode_entry
from queuey.claims.rules.entry_draft import EntryDraft, Poll
from queuey.claims.rules.kinds.ordered import OrderedRules, compute_key_digest
from queuey.claims.rules.kinds.plain import LogParts
from queuey.claims.rules.partition_state import MAX_ABOVE, MAX_OUTSTANDING, MAX_SUPERSEDED, ClaimTiming, State
from queuey.claims.rules.receipts import ClaimReceipt, ReceiptOutcome, ReceiptStatus
from queuey.claims.rules.waiting import Waiting
from queuey.model import ids
from queuey.model.ids import Position
from queuey.model.messages import Message, Meta

TIMING = ClaimTiming(margin=1.0)
IDS = st.integers(1, 12)
NOW = 1_000_000_000_000
"""A start time, in milliseconds since 1970."""


def at(number: int) -> Position:
    return number, 0


def message(number: int) -> Message:
    return Message(number, 0, 1, 0, f"m{number}")


def receipt(number: int, entry: int = 0) -> ClaimReceipt:
    return ClaimReceipt(1, number, 0, entry)


def apply(state: State, draft: EntryDraft) -> ClaimEntry:
    """Applies the entry of a draft to the state, after it was encoded and decoded, and returns it."""
    entry = decode_entry(encode_entry(draft.make_entry(7)))
    state.apply(state.number + 1, entry)
    return entry


def claim(state: State, *numbers: int, now: int = NOW, ttl: float = 30.0) -> int:
    """Claims exactly these messages, and returns the number of the entry."""
    draft = EntryDraft(state, now, TIMING)
    poll = Poll(1000, ttl, 1 << 20)
    draft.deliver([poll], [message(number) for number in numbers], [message(number) for number in numbers])
    assert [message.ticks for message in poll.given] == list(numbers)
    apply(state, draft)
    return state.number


def settle(state: State, what: str, *receipts: ClaimReceipt, now: int = NOW, ttl: float = 30.0) -> list[ReceiptStatus]:
    draft = EntryDraft(state, now, TIMING)
    settlements = draft.renew(receipts, ttl) if what == "renew" else getattr(draft, what)(receipts)
    apply(state, draft)
    return [settlement.status for settlement in settlements]


@dataclass
class Model:
    """The state of each message, kept without regard to speed."""

    number: int = 0
    cursor: int = 0
    claims: dict[int, list[int]] = field(default_factory=dict)
    """Per message the entry, the number of the attempt, the expiry, the number of earlier deliveries that do not count,
    whether this one counts, and whether it is suspected."""
    done: set[int] = field(default_factory=set)
    resting: set[int] = field(default_factory=set)
    """Messages that were released with a delay."""

    def is_done(self, number: int) -> bool:
        return number in self.done or (number <= self.cursor and number not in self.claims)


class Run:
    """A state and the model, with the same steps."""

    def __init__(self) -> None:
        self.state = State()
        self.model = Model()
        self.now = NOW

    def do(self, step: tuple[str, list[int], int]) -> None:
        """Does a step on the state and on the model, and compares them; ``wait`` only advances the clock."""
        what, numbers, extra = step
        if what == "wait":
            self.now += extra * 700
            return
        draft = EntryDraft(self.state, self.now, TIMING)
        if what == "claim":
            self._claim(draft, sorted(set(numbers)), extra)
        elif what == "release all":
            draft.release_all()
            for n, claim in self.model.claims.items():
                if claim[2] and n not in self.model.resting:
                    has_lapsed = claim[2] < self.now and claim[1] > 0
                    claim[4] = has_lapsed or not self._may_go_uncounted(n)
                    claim[5] = claim[5] or has_lapsed
                claim[2] = 0
            self.model.resting.clear()
        else:
            self._settle(draft, what, numbers, extra)
        apply(self.state, draft)
        self.model.number += 1
        self.compare()

    def _claim(self, draft: EntryDraft, numbers: list[int], extra: int) -> None:
        """Delivers messages, and compares which; with ``extra`` also advances the cursor towards it.

        A suspected message is alone.
        """
        model = self.model
        new = [n for n in numbers if not model.is_done(n) and n not in model.claims and n > model.cursor]
        old = [n for n, one in model.claims.items() if one[2] + 1000 < self.now]
        assert {place[0] for place in self.state.find_ended(TIMING.expiry_limit(self.now), 100)} == set(old)
        poll = Poll(1000, 2.0, 1 << 20)
        draft.deliver([poll], [message(n) for n in sorted(numbers)], [message(n) for n in numbers])
        delivered = [n for n in sorted(numbers) if n in old] + new
        first = next((index for index, n in enumerate(delivered) if self._is_suspected(n)), None)
        delivered = delivered if first is None else delivered[: max(1, first)]
        assert [message.ticks for message in poll.given] == delivered
        for n in delivered:
            _, attempts, _, uncounted, counts, _ = model.claims.get(n, [0, 0, 0, 0, True, False])
            marks = uncounted + (not counts), True, self._is_suspected(n)
            model.claims[n] = [model.number + 1, attempts + counts, self.now + 2000, *marks]
            model.resting.discard(n)
        if extra:
            draft.advance(at(extra), [at(n) for n in numbers])
            unknown = [n for n in numbers if n < extra and not model.is_done(n) and n not in model.claims]
            model.cursor = max(model.cursor, min([extra, *unknown]) - 1)

    def _settle(self, draft: EntryDraft, what: str, numbers: list[int], extra: int) -> None:
        """Settles messages one by one, and compares each status.

        ``extra`` chooses receipts: of any claim, of the present one or of another. It is also the delay or lifetime.
        """
        model = self.model
        for n in numbers:
            claim = model.claims.get(n)
            number = 0 if extra % 3 == 0 else (claim[0] if claim and extra % 3 == 1 else max(1, model.number - 1))
            if claim is None:
                expected = ReceiptStatus.FINAL if number or model.is_done(n) else ReceiptStatus.ACCEPTED
            else:
                expected = ReceiptStatus.ACCEPTED if number in {0, claim[0]} else ReceiptStatus.SUPERSEDED
            calls: dict[str, Callable[[list[ClaimReceipt]], list[ReceiptOutcome]]] = {
                "ack": draft.acknowledge,
                "release": draft.release,
                "release unbegun": partial(draft.release, begun=False),
                "release later": partial(draft.release, delay=extra),
                "release unbegun later": partial(draft.release, delay=extra, begun=False),
                "renew": partial(draft.renew, ttl=extra),
            }
            [settlement] = calls[what]([receipt(n, number)])
            assert settlement.status is expected, (what, n, number, claim)
            if expected is ReceiptStatus.ACCEPTED:
                self._update_model(what, n, extra, by_id=not number)

    def _update_model(self, what: str, n: int, extra: int, *, by_id: bool) -> None:
        model = self.model
        is_later = what.endswith("later") and extra > 0
        if what == "ack":
            model.claims.pop(n, None)
            model.done.add(n)
            model.resting.discard(n)
        elif what == "renew":
            claim = model.claims.setdefault(n, [0, 0, 0, 0, True, False])
            claim[4] = claim[4] or claim[2] < self.now + 1000 * extra
            claim[2] = max(claim[2], self.now + 1000 * extra)
            model.resting.discard(n)
        elif (claim := model.claims.get(n, [])) and (is_later or claim[2]):
            if by_id and not is_later and claim[2] + 1000 < self.now:
                return  # It ended in silence.
            is_held = claim[2] and n not in model.resting
            claim[4] = not (what.startswith("release unbegun") and is_held and self._may_go_uncounted(n))
            claim[2] = self.now + 1000 * extra if is_later else 0
            (model.resting.add if claim[2] else model.resting.discard)(n)

    def _may_go_uncounted(self, n: int) -> bool:
        _, attempts, _, uncounted, *_ = self.model.claims[n]
        return attempts > 0 and uncounted < 10

    def _is_suspected(self, n: int) -> bool:
        _, attempts, expires, _, _, suspected = self.model.claims.get(n, [0, 0, 0, 0, True, False])
        return bool(suspected or (attempts and expires and n not in self.model.resting))

    def compare(self) -> None:
        state, model = self.state, self.model
        assert state.number == model.number
        kept = {
            place[0]: [one.number, one.deliveries, one.expires, one.uncounted, one.begun, one.suspected]
            for place, one in state.outstanding.items()
        }
        assert kept == model.claims
        for n in range(1, 14):
            assert state.is_done(at(n)) == model.is_done(n), n
        read = State.decode(state.encode())
        assert read.encode() == state.encode()
        for one in state.outstanding.values():
            assert (one.attempts, one.handed_out) == (one.deliveries - (not one.begun), one.deliveries + one.uncounted)


RELEASES = ["release", "release unbegun", "release later", "release unbegun later"]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["claim", "claim", "ack", "renew", *RELEASES, "release all", "wait"]),
        st.lists(IDS, max_size=5, unique=True),
        st.integers(0, 13),
    ),
    max_size=25,
)


@given(STEPS)
def test_it_is_what_the_model_says(steps: list[tuple[str, list[int], int]]) -> None:
    """After any claims, acknowledgements, renewals and releases the state of each message is that of the model."""
    run = Run()
    for step in steps:
        run.do(step)


@given(STEPS, STEPS)
def test_a_snapshot_stands_for_all_entries(
    steps: list[tuple[str, list[int], int]], later: list[tuple[str, list[int], int]]
) -> None:
    """A process that starts from a snapshot decides like one that has read every entry."""
    run = Run()
    for step in steps:
        run.do(step)
    run.state = State.decode(run.state.encode())
    for step in later:
        run.do(step)


def test_bounds() -> None:
    """A partition has limits of claims and of remembered unclaimed ids, and says when they are reached."""
    state = State()
    for first in range(0, MAX_OUTSTANDING, 1000):
        claim(state, *range(first + 1, first + 1001))
    draft = EntryDraft(state, NOW, TIMING)
    poll = Poll(10, 30, 1000)
    draft.deliver([poll], [], [message(MAX_OUTSTANDING + 1)])
    assert poll.given == []
    assert settle(state, "renew", receipt(MAX_OUTSTANDING + 1), receipt(1)) == [
        ReceiptStatus.REFUSED,
        ReceiptStatus.ACCEPTED,
    ]
    everything = [receipt(n + 1, 0) for n in range(MAX_OUTSTANDING)]
    assert set(settle(state, "acknowledge", *everything)) == {ReceiptStatus.ACCEPTED}
    assert len(state.above) == MAX_ABOVE
    assert settle(state, "acknowledge", receipt(MAX_OUTSTANDING + 1)) == [ReceiptStatus.REFUSED]
    draft = EntryDraft(state, NOW, TIMING)
    assert draft.advance(at(MAX_ABOVE + 1), [at(n + 1) for n in range(MAX_ABOVE)]) == MAX_ABOVE
    apply(state, draft)
    assert (state.above, state.outstanding) == (set(), {})
    assert state.weight == State().weight


def test_how_long_superseded_ones_are_remembered() -> None:
    """The newest superseded ids are kept, as many as can be claimed at once, for a day at most."""
    state = State()
    for first in range(0, MAX_SUPERSEDED + 1000, 1000):
        numbers = range(first + 1, first + 1001)
        claim(state, *numbers)
        draft = EntryDraft(state, NOW, TIMING)
        draft.supersede([at(number) for number in numbers])
        apply(state, draft)
    assert list(state.superseded) == [at(number) for number in range(1001, MAX_SUPERSEDED + 1001)]
    number = claim(state, 50_000)
    draft = EntryDraft(state, NOW + 86_400_001, TIMING)
    draft.supersede([at(50_000)])
    apply(state, draft)
    assert list(state.superseded) == [at(50_000)]
    assert settle(state, "acknowledge", receipt(50_000, number), now=NOW + 86_400_002) == [ReceiptStatus.SUPERSEDED]
    for which in (state, State.decode(state.encode())):
        settle(which, "release", receipt(50_000, number), now=NOW + 2 * 86_400_002)
        assert not which.superseded


def test_only_the_next_entry() -> None:
    """An entry that does not follow the last one changes nothing."""
    state = State()
    for number in (0, 2):
        with pytest.raises(ValueError, match="does not follow"):
            state.apply(number, ClaimEntry())
    assert state.number == 0


@pytest.mark.parametrize("body", [b"", b"\xc1", b"\x91\x03", msgspec.msgpack.encode([3, "other", {}])])
def test_unknown_formats(body: bytes) -> None:
    """An entry or snapshot of a later version is refused."""
    with pytest.raises(UnknownFormat, match="format"):
        decode_entry(body)
    with pytest.raises(UnknownFormat, match="format"):
        State.decode(body)


@given(st.floats(0.001, 43_200), st.floats(0, 5))
def test_answers_leave_time(ttl: float, margin: float) -> None:
    """A claim that is answered in time has time left: the margin, or half of a short one."""
    assert ttl - ClaimTiming(margin).seconds_to_answer(ttl) == pytest.approx(min(margin, ttl / 2), abs=1e-9)


HOUR = 3_600_000
YEAR = 365 * 24 * HOUR


@pytest.mark.parametrize("ahead", [14 * HOUR, 400 * 24 * HOUR, 40 * YEAR])
@pytest.mark.parametrize("read_again", [False, True])
def test_a_claim_from_the_future_is_over(ahead: int, *, read_again: bool) -> None:
    """A claim that ends later than any claim made now was made while the clock was ahead: others get its message."""
    state = State()
    claim(state, 1, 2, now=NOW + ahead)
    claim(state, 3)
    if read_again:
        state = State.decode(state.encode())
    expired = TIMING.expiry_limit(NOW)
    assert sorted(state.find_ended(expired, 10)) == [at(1), at(2)]
    assert [state.is_live(at(n), expired) for n in (1, 2, 3)] == [False, False, True]
    assert state.count_live(expired) == 1
    claim(state, 1)
    assert state.find_ended(expired, 10) == [at(2)]
    assert sorted(state.find_ended(TIMING.expiry_limit(NOW + 40_000), 10)) == [at(1), at(2), at(3)]


def test_a_claim_from_the_future_is_renewed_by_the_clock_of_now() -> None:
    """The holder of a claim from the future keeps it by a renewal, which ends when a renewal made now does."""
    state = State()
    number = claim(state, 1, now=NOW + YEAR)
    assert settle(state, "renew", receipt(1, number)) == [ReceiptStatus.ACCEPTED]
    assert state.outstanding[at(1)].expires == NOW + 30_000
    assert state.is_live(at(1), TIMING.expiry_limit(NOW))
    assert state.find_ended(TIMING.expiry_limit(NOW), 10) == []
    assert state.find_ended(TIMING.expiry_limit(NOW + 32_000), 10) == [at(1)]


def test_what_others_deliver_is_forgotten() -> None:
    """A process that finds a key busy at each poll does not remember what others delivered of it."""
    state, waiting = State(), Waiting()
    for number in range(1, 7):
        waiting.add(at(number), 1 if number < 6 else 2)
    for number in range(1, 5):
        claim(state, number)
        assert list(waiting.iterate(state)) == [at(later) for later in range(number + 1, 7)]
    assert (len(waiting), waiting.count(1)) == (2, 1)


def test_an_expired_claim_is_not_made_longer_by_a_release() -> None:
    """A release with a delay is a claim until its end, but not while another caller has an earlier message of the key.

    A release without a delay, or with the queue's backoff, gives the message up, which is allowed.
    """
    state, waiting = State(), Waiting()
    messages = [Message(number, 0, 1, ids.TICKS_MAX, "x", Meta(key="a")) for number in (1, 2)]
    for one in messages:
        waiting.add(one.position, compute_key_digest(one))
    waiting.front = at(3)

    def begin(seconds: int) -> EntryDraft:
        return EntryDraft(state, NOW + 1000 * seconds, TIMING, OrderedRules, LogParts(waiting=waiting))

    for seconds, limit in ((0, 2), (40, 1)):
        draft, poll = begin(seconds), Poll(limit, 30.0, 1 << 20)
        draft.deliver([poll], messages, messages)
        assert poll.given == messages[:limit]
        apply(state, draft)
    first = [receipt(1, 1), receipt(2, 1)]
    assert [one.status for one in begin(40).release(first, 30.0)] == [ReceiptStatus.SUPERSEDED] * 2
    for seconds, delay in ((40, 0.0), (40, lambda *_: 5.0), (80, 30.0)):
        assert [one.status for one in begin(seconds).release(first[1:], delay)] == [ReceiptStatus.ACCEPTED]
