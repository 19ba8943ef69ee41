"""Limits of claims: the deliveries of an entry, compared with the number of live claims."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuey import ids
from queuey.claims.drafts import EntryDraft
from queuey.claims.entries import decode_entry, encode_entry
from queuey.claims.places import ClaimLimits, find_claim_limits
from queuey.claims.polls import Poll
from queuey.claims.receipts import ClaimReceipt, ReceiptStatus
from queuey.claims.state import ClaimTiming, State
from queuey.ids import Position
from queuey.messages import Message, Meta, Queue

TIMING = ClaimTiming(margin=1.0)
NOW = 1_000_000_000_000
"""A start time, in milliseconds since 1970."""


def at(number: int) -> Position:
    return number, 0


class Partition:
    """The log of a queue with limits.

    Args:
        keys: The key of each message, by its number from 1 on; a dot is a message without a key.
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
        return EntryDraft(self.state, self.now, TIMING, None, None, self.limits)

    def give(self, draft: EntryDraft, *polls: Poll) -> list[list[int]]:
        draft.deliver(polls, self.messages, self.messages)
        return [[message.ticks for message in poll.given] for poll in polls]

    def append(self, draft: EntryDraft) -> None:
        """Appends an entry to the log, and reads it and a snapshot back."""
        secrets = [5] * len(draft.groups)
        self.state.apply(self.state.number + 1, decode_entry(encode_entry(draft.make_entry(7, secrets=secrets))))
        self.state = State.decode(self.state.encode())

    def claim(self, limit: int = 100, ttl: float = 30.0) -> list[int]:
        draft = self.draft()
        [delivered] = self.give(draft, Poll(limit, ttl, 1 << 20))
        self.append(draft)
        return delivered

    def settle(self, what: str, *of: int, **how: float) -> list[ReceiptStatus]:
        draft = self.draft()
        settled = getattr(draft, what)([ClaimReceipt(1, *at(number)) for number in of], **how)
        self.append(draft)
        return [settlement.status for settlement in settled]

    def live(self) -> list[int]:
        expired = TIMING.expiry_limit(self.now)
        return [message.ticks for message in self.messages if self.state.is_live(message.position, expired)]


def test_limits_of_a_partition() -> None:
    """A queue's claims are divided among its partitions; without limits nothing is counted."""
    queue = Queue(application="acme", name="q", uid=1, qid=1, partitions=3, max_claimed=7)
    assert [find_claim_limits(queue, number) for number in (1, 2, 3)] == [ClaimLimits(share, 0) for share in (3, 2, 2)]
    assert find_claim_limits(Queue(application="acme", name="q", uid=1, qid=1), 1) is None


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["claim", "acknowledge", "release", "delay", "renew", "release_all", "wait"]),
        st.integers(1, 8),
    ),
    max_size=25,
)


@given(st.text("ab.", min_size=8, max_size=8), st.integers(0, 4), st.integers(0, 2), STEPS)
def test_never_more_than_there_are_places(keys: str, total: int, per_key: int, steps: list[tuple[str, int]]) -> None:
    """Whatever callers do, the log never exceeds the limit of live claims, and a message with a slot can be claimed."""
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
        unclaimed = [message for message in log.messages if not log.state.is_known(message.position)]
        free = [one for one in unclaimed if one.meta is None or not per_key or of_keys[keys[one.ticks - 1]] < per_key]
        shown = log.give(log.draft(), Poll(100, 0, 1 << 20))[0]
        assert bool(shown) or not free or (total and len(live) >= total)


@pytest.mark.parametrize("limits", [{"per_key": 1}, {"total": 1}])
def test_a_claim_that_is_over_by_another_clock(limits: dict[str, int]) -> None:
    """If a process with a fast clock has given a claim's slot away, one with a slow clock does not renew the claim."""
    log = Partition("aa", **limits)
    assert log.claim(ttl=30.0) == [1]
    log.now += 31_001
    log.messages = log.messages[1:]
    assert log.claim() == [2]
    log.now -= 1_000
    assert log.state.is_live(at(1), TIMING.expiry_limit(log.now))
    assert log.settle("renew", 1, ttl=30.0) == [ReceiptStatus.SUPERSEDED]
    assert log.settle("renew", 2, ttl=30.0) == [ReceiptStatus.DONE]
