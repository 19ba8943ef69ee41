"""Limits of claims: what an entry gives, beside the number of live claims that there are."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuey import ids
from queuey.claims import (
    ClaimLimits,
    ClaimReceipt,
    ClaimTiming,
    EntryDraft,
    LikelyPlaces,
    Poll,
    ReceiptStatus,
    State,
    decode_entry,
    encode_entry,
    limits_of,
)
from queuey.ids import Position
from queuey.messages import Message, Meta, Queue
from tests.replacing import replace

TIMING = ClaimTiming(margin=1.0)
NOW = 1_000_000_000_000
"""Milliseconds since 1970."""


def at(number: int) -> Position:
    """The position of the message of a number."""
    return number, 0


class Partition:
    """A log of a queue with limits.

    Args:
        keys: The key of each message, by its number from 1 on; a dot stands for none.
        total, per_key: The limits.
    """

    def __init__(self, keys: str, total: int = 0, per_key: int = 0) -> None:
        self.messages = [
            Message(number, 0, 1, ids.TICKS_MAX, f"m{number}", None if key == "." else Meta(key=key))
            for number, key in enumerate(keys, 1)
        ]
        self.limits = ClaimLimits(total, per_key)
        self.state = State()
        self.now = NOW

    def draft(self) -> EntryDraft:
        """The next entry."""
        return EntryDraft(self.state, self.now, TIMING, None, None, self.limits)

    def give(self, draft: EntryDraft, *polls: Poll) -> list[list[int]]:
        """Delivers whatever may be; returns which messages each poll gets."""
        draft.deliver(polls, self.messages, self.messages)
        return [[one.ticks for one in poll.given] for poll in polls]

    def append(self, draft: EntryDraft) -> None:
        """Appends an entry to the log, and reads it and a snapshot back."""
        secrets = [5] * len(draft.groups)
        self.state.apply(self.state.number + 1, decode_entry(encode_entry(draft.entry(7, secrets=secrets))))
        self.state = State.decode(self.state.encode())

    def claim(self, limit: int = 100, ttl: float = 30.0) -> list[int]:
        """Claims messages for one caller."""
        draft = self.draft()
        [given] = self.give(draft, Poll(limit, ttl, 1 << 20))
        self.append(draft)
        return given

    def settle(self, what: str, *of: int, **how: float) -> list[ReceiptStatus]:
        """Acknowledges, renews or releases messages."""
        draft = self.draft()
        settled = getattr(draft, what)([ClaimReceipt(1, *at(number)) for number in of], **how)
        self.append(draft)
        return [one.status for one in settled]

    def live(self) -> list[int]:
        """The messages that somebody may be working on."""
        expired = TIMING.expired(self.now)
        return [one.ticks for one in self.messages if self.state.is_live(one.position, expired)]


@pytest.mark.parametrize("limits", [{"per_key": 1}, {"total": 1}])
def test_showing_takes_no_place(limits: dict[str, int]) -> None:
    """A poll that claims nothing is shown what it would get, and the next one gets that."""
    log = Partition("aa", **limits)
    draft = log.draft()
    assert log.give(draft, Poll(5, 0, 1 << 20), Poll(5, 30.0, 1 << 20), Poll(5, 0, 1 << 20)) == [[1], [1], []]


@pytest.mark.parametrize("limits", [{"per_key": 1}, {"total": 1}])
def test_an_expired_claim_has_lost_its_place(limits: dict[str, int]) -> None:
    """It keeps it as long as the claim may count for anybody; then it is renewed only if there is a free one."""
    log = Partition("aa", **limits)
    assert log.claim(ttl=30.0) == [1]
    log.now += 31_000
    assert log.claim() == []
    assert log.settle("renew", 1, ttl=30.0) == [ReceiptStatus.DONE]
    log.now += 31_001
    log.messages = log.messages[1:]
    assert log.claim() == [2]
    assert log.settle("renew", 1, ttl=30.0) == [ReceiptStatus.SUPERSEDED]
    assert log.settle("release", 1, delay=5.0) == [ReceiptStatus.DONE]
    log.settle("acknowledge", 2)
    assert log.settle("renew", 1, ttl=30.0) == [ReceiptStatus.DONE]
    assert log.state.is_live(at(1), TIMING.expired(log.now))


@pytest.mark.parametrize("limits", [{"per_key": 1}, {"total": 1}])
def test_a_claim_that_is_over_by_another_clock(limits: dict[str, int]) -> None:
    """Where a process with a fast clock has given a claim's place away, one with a slow clock does not renew it."""
    log = Partition("aa", **limits)
    assert log.claim(ttl=30.0) == [1]
    log.now += 31_001
    log.messages = log.messages[1:]
    assert log.claim() == [2]
    log.now -= 1_000
    assert log.state.is_live(at(1), TIMING.expired(log.now))
    assert log.settle("renew", 1, ttl=30.0) == [ReceiptStatus.SUPERSEDED]
    assert log.settle("renew", 2, ttl=30.0) == [ReceiptStatus.DONE]


@pytest.mark.parametrize("limits", [{"per_key": 30}, {"total": 30}])
@pytest.mark.parametrize("end", ["release", "release_all"])
def test_renewing_many_counts_the_others_once(limits: dict[str, int], end: str) -> None:
    """One caller that begins many claims again does not have all that is outstanding counted for each of them."""
    log = Partition("a" * 30, **limits)
    assert len(log.claim()) == 30
    draft = log.draft()
    receipts = [ClaimReceipt(1, *at(number)) for number in range(1, 31)]
    draft.release(receipts) if end == "release" else draft.release_all()
    real, looked = State.is_live, []

    def is_live(state: State, position: Position, expired: int) -> bool:
        looked.append(position)
        return real(state, position, expired)

    with replace(State.is_live, is_live):
        assert {one.status for one in draft.renew(receipts, 30.0)} == {ReceiptStatus.DONE}
    assert len(looked) <= 4 * len(receipts)


@pytest.mark.parametrize("limits", [{"per_key": 1}, {"total": 1}])
def test_what_waits_for_its_delay_takes_no_place(limits: dict[str, int]) -> None:
    """A message that was released with a delay rests, also after a snapshot, until it is given or renewed."""
    log = Partition("aaa", **limits)
    assert log.claim() == [1]
    log.settle("release", 1, delay=60.0)
    assert (log.live(), log.state.resting) == ([], {at(1)})
    assert log.claim(limit=1) == [2]
    assert log.settle("renew", 1, ttl=30.0) == [ReceiptStatus.SUPERSEDED]
    log.settle("acknowledge", 2)
    assert log.settle("renew", 1, ttl=30.0) == [ReceiptStatus.DONE]
    assert (log.live(), log.state.resting) == ([1], set())
    assert log.claim() == []


def test_counts_of_what_left_its_place_grow() -> None:
    """Also where a state is read again from a snapshot, so a claim that waits learns of each place that is free."""
    log = Partition("aaaa", total=4)
    assert log.claim() == [1, 2, 3, 4]
    read_again = State.decode(log.state.encode())
    for what, number in (("acknowledge", 1), ("delay", 2), ("acknowledge", 3), ("acknowledge", 4)):
        before = log.state.vacated
        assert before >= read_again.vacated
        log.settle("release" if what == "delay" else what, number, **({"delay": 9.0} if what == "delay" else {}))
        assert log.state.vacated > before


def test_a_bare_id_begins_a_claim_only_in_a_place() -> None:
    """An id that was not delivered is renewed if the partition has a place, but not where keys are limited."""
    log = Partition("...", total=2)
    log.now = 1000 * round(ids.ticks_to_seconds(10))
    assert log.settle("renew", 1, 2, 3, ttl=30.0) == [ReceiptStatus.DONE] * 2 + [ReceiptStatus.SUPERSEDED]
    assert log.claim() == []
    assert Partition("a", per_key=1).settle("renew", 1, ttl=30.0) == [ReceiptStatus.FINAL]


def test_limits_of_a_partition() -> None:
    """The claims of a queue are divided; without limits there is nothing to count."""
    queue = Queue(application="acme", name="q", uid=1, qid=1, partitions=3, max_claimed=7)
    assert [limits_of(queue, number) for number in (1, 2, 3)] == [ClaimLimits(share, 0) for share in (3, 2, 2)]
    assert limits_of(Queue(application="acme", name="q", uid=1, qid=1), 1) is None


def test_what_is_read_for_an_entry() -> None:
    """As many messages are looked for as there will be places, those that the entry ends included."""
    log = Partition("aab.c", total=5, per_key=2)
    assert log.claim() == [1, 2, 3, 4, 5]
    log.settle("release", 1, 5)
    places = LikelyPlaces(log.state, log.limits, TIMING.expired(log.now), [at(2), at(2), at(9)])
    a, b, c = (log.state.outstanding[at(number)].key for number in (1, 3, 5))
    assert (places.of_all, places.of_key(a), places.of_key(b), places.of_key(c)) == (3, 2, 1, 2)
    assert places.of_key(0) > 1000
    assert places.ended(9) == [at(1), at(5)]
    places.give(log.messages[:1])
    assert places.of_key(a) == 1


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["claim", "acknowledge", "release", "delay", "renew", "release_all", "wait"]),
        st.integers(1, 8),
    ),
    max_size=25,
)


@given(st.text("ab.", min_size=8, max_size=8), st.integers(0, 4), st.integers(0, 2), STEPS)
def test_never_more_than_there_are_places(keys: str, total: int, per_key: int, steps: list[tuple[str, int]]) -> None:
    """Whatever callers do, the log never has more live claims than allowed, and what has a place can be claimed."""
    log = Partition(keys, total, per_key)
    for what, number in steps:
        if what == "claim":
            log.claim(limit=number)
        elif what == "wait":
            log.now += number * 5_000
        elif what == "release_all":
            draft = log.draft()
            draft.release_all()
            log.append(draft)
        elif at(number) in log.state.outstanding:
            how = {"renew": {"ttl": 20.0}, "delay": {"delay": 20.0}}.get(what, {})
            log.settle("release" if what == "delay" else what, number, **how)
        live = log.live()
        of_keys = Counter(keys[one - 1] for one in live)
        assert not total or len(live) <= total
        assert not per_key or all(of_keys[key] <= per_key for key in "ab")
        left = [one for one in log.messages if not log.state.is_known(one.position)]
        free = [one for one in left if one.meta is None or not per_key or of_keys[keys[one.ticks - 1]] < per_key]
        shown = log.give(log.draft(), Poll(100, 0, 1 << 20))[0]
        assert bool(shown) or not free or (total and len(live) >= total)
