"""Ordered queues: the deliveries of an entry, compared with a model that knows each message."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from queuey import ids
from queuey.claims.drafts import EntryDraft
from queuey.claims.entries import decode_entry, encode_entry
from queuey.claims.order import Waiting, compute_key_digest, count_deliverable_in_order
from queuey.claims.polls import Poll
from queuey.claims.receipts import ClaimReceipt, ReceiptStatus
from queuey.claims.state import ClaimTiming, State
from queuey.ids import Position
from queuey.messages import Message, Meta

TIMING = ClaimTiming(margin=1.0)
NOW = 1_000_000_000_000
"""A start time, in milliseconds since 1970."""
KEYS = "abc"


def at(number: int) -> Position:
    return number, 0


def message(number: int, key: str = "a", expires: int = ids.TICKS_MAX) -> Message:
    return Message(number, 0, 1, expires, f"m{number}", Meta(key=key))


def numbers(messages: Sequence[Message]) -> list[int]:
    return [message.ticks for message in messages]


class Partition:
    """The log of an ordered queue, and what a process knows of its messages.

    Args:
        keys: The key of each message, by its number from 1 on.
    """

    def __init__(self, keys: str) -> None:
        self.messages = [message(number, key) for number, key in enumerate(keys, 1)]
        self.state = State()
        self.now = NOW
        self.waiting = self.read()

    def read(self) -> Waiting:
        waiting = Waiting()
        for message in self.messages:
            if not self.state.is_known(message.position):
                waiting.add(message.position, compute_key_digest(message))
        waiting.front = at(len(self.messages) + 1)
        return waiting

    def draft(self) -> EntryDraft:
        return EntryDraft(self.state, self.now, TIMING, None, self.waiting)

    def give(self, draft: EntryDraft, *polls: Poll, among: Sequence[int] | None = None) -> list[list[int]]:
        readable = [message for message in self.messages if among is None or message.ticks in among]
        draft.deliver(polls, readable, readable)
        return [numbers(poll.given) for poll in polls]

    def append(self, draft: EntryDraft) -> None:
        self.state.apply(self.state.number + 1, decode_entry(encode_entry(draft.make_entry(7))))

    def claim(self, limit: int = 10, ttl: float = 30.0, among: Sequence[int] | None = None) -> list[int]:
        draft = self.draft()
        [delivered] = self.give(draft, Poll(limit, ttl, 1 << 20), among=among)
        self.append(draft)
        return delivered

    def settle(self, what: str, *of: int) -> list[ReceiptStatus]:
        draft = self.draft()
        settled = getattr(draft, what)([ClaimReceipt(1, *at(number)) for number in of])
        self.append(draft)
        return [settlement.status for settlement in settled]


def test_what_others_deliver_is_forgotten() -> None:
    """A process that finds a key busy at each poll does not remember what others delivered of it."""
    log = Partition("aaaaab")
    here = log.waiting
    for number in range(1, 5):
        log.waiting = log.read()
        draft = log.draft()
        draft.acknowledge([ClaimReceipt(1, *position) for position in log.state.outstanding])
        assert log.give(draft, Poll(1, 30.0, 1 << 20)) == [[number]]
        log.append(draft)
        assert here.choose(log.state, partial(count_deliverable_in_order, log.state, (), 10), 10) == [at(6)]
        assert [one[0] for one in here.iterate(log.state)] == [*range(number + 1, 7)]
    assert (len(here), here.count(compute_key_digest(message(1)))) == (2, 1)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["claim", "claim", "claim", "acknowledge", "release", "wait", "restart"]),
        st.sets(st.integers(1, 10), max_size=6),
        st.lists(st.integers(1, 4), min_size=1, max_size=3),
    ),
    max_size=25,
)


@given(st.text(KEYS, min_size=10, max_size=10), STEPS)
def test_order_holds(keys: str, steps: list[tuple[str, set[int], list[int]]]) -> None:
    """In any sequence of reads, acknowledgements, releases and expiries each key is in order, one caller at a time."""
    log = Partition(keys)
    claimed: dict[int, tuple[int, int]] = {}
    done: set[int] = set()
    begun: dict[str, int] = {}
    for what, numbers_of_step, limits in steps:
        if what == "wait":
            log.now += 3000
        elif what == "restart":
            log.waiting = log.read()
        elif what != "claim":
            log.settle(what, *[number for number in sorted(numbers_of_step) if number in claimed])
            for number in numbers_of_step & claimed.keys():
                done |= {number} if what == "acknowledge" else set()
                claimed[number] = (claimed[number][0], 0)
        else:
            draft = log.draft()
            given_all = log.give(draft, *(Poll(limit, 2.0, 1 << 20) for limit in limits), among=sorted(numbers_of_step))
            log.append(draft)
            callers = [(log.state.number, caller) for caller in range(len(limits))]
            for caller, delivered in zip(callers, given_all, strict=True):
                for number in delivered:
                    key = keys[number - 1]
                    same = [one for one in range(1, 11) if keys[one - 1] == key and one not in done and one != number]
                    assert all(one in delivered for one in same if one < number)
                    assert all(one in delivered or claimed.get(one, (0, 0))[1] + 1000 < log.now for one in same)
                    assert number not in done
                    assert number in claimed or number > begun.get(key, 0)
                    begun[key] = max(number, begun.get(key, 0))
                for number in delivered:
                    claimed[number] = (caller[0], log.now + 2000)
    assert State.decode(log.state.encode()).busy == log.state.busy


def test_what_expires_soon_is_given_to_nobody() -> None:
    """A message that expires soon, which another process may have passed, is done; the next one is delivered."""
    log = Partition("aa")
    soon = ids.seconds_to_ticks(NOW / 1000 + 0.9)
    log.messages[0] = message(1, expires=soon)
    assert log.give(log.draft(), Poll(9, 0.0, 1 << 20)) == [[]]
    assert log.claim() == [2]
    assert log.state.is_done(at(1))


def test_an_expired_claim_is_not_made_longer_by_a_release() -> None:
    """A release with a delay is a claim until its end, but not while another caller has an earlier message of the key.

    A release without a delay, or with the queue's backoff, gives the message up, which is allowed.
    """
    log = Partition("aab")
    log.claim(limit=2)
    first = [ClaimReceipt(1, *at(number), 1, 0) for number in (1, 2)]
    log.now += 40_000
    assert log.claim(limit=1) == [1]
    assert [settlement.status for settlement in log.draft().release(first, 30.0)] == [ReceiptStatus.SUPERSEDED] * 2
    assert [settlement.status for settlement in log.draft().release(first[1:], 0.0)] == [ReceiptStatus.DONE]
    assert [settlement.status for settlement in log.draft().release(first[1:], lambda *_: 5.0)] == [ReceiptStatus.DONE]
    log.now += 40_000
    assert [settlement.status for settlement in log.draft().release(first[1:], 30.0)] == [ReceiptStatus.DONE]
