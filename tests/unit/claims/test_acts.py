"""Operators' acts on messages, as the next entry records them."""

from __future__ import annotations

import pytest

from queuey.claims.acts import MAX_KNOWN_WITH_EARLY, cancel, make_available_now
from queuey.claims.drafts import EntryDraft
from queuey.claims.places import ClaimLimits
from queuey.claims.polls import Poll
from queuey.claims.receipts import ClaimReceipt
from queuey.claims.state import State
from queuey.ids import seconds_to_ticks
from tests.unit.claims.test_state import NOW, TIMING, apply, at, claim, message, receipt, settle

LATER = ClaimReceipt(1, seconds_to_ticks(NOW / 1000 + 3600), 0)
"""The receipt of a message that is not due."""


def test_acts_that_share_an_entry() -> None:
    """A message retried before it is due does not count as claimed: other acts see that, and it needs no slot."""
    state = State()
    draft = EntryDraft(state, NOW, TIMING, limits=ClaimLimits(1, 0))
    assert [make_available_now(draft, LATER), make_available_now(draft, LATER), cancel(draft, LATER)] == [
        "waiting",
        "waiting",
        "delayed",
    ]
    poll = Poll(1, 30, 1 << 20)
    draft.deliver([poll], [], [message(1)])
    assert poll.given == [message(1)]
    apply(state, draft)
    assert cancel(EntryDraft(state, NOW, TIMING), LATER) == "removed"


def test_a_retry_of_a_cancelled_message_ends_it() -> None:
    """Retrying a cancelled message ends it, as its worker has died; the answer says so."""
    state = State()
    claim(state, 1)
    draft = EntryDraft(state, NOW, TIMING)
    cancel(draft, receipt(1))
    apply(state, draft)
    late = EntryDraft(state, NOW + 60_000, TIMING)
    assert make_available_now(late, receipt(1)) == "done"
    apply(state, late)
    assert state.is_done(at(1))


@pytest.mark.parametrize("done", [False, True])
def test_early_messages_leave_room(*, done: bool) -> None:
    """Messages handled before they are due are remembered until then, up to a limit that leaves room for others."""
    state, numbers = State(), range(1, MAX_KNOWN_WITH_EARLY)
    for first in numbers[::1000]:
        claim(state, *numbers[first - 1 : first + 999])
    if done:
        settle(state, "acknowledge", *map(receipt, numbers))
    draft, other = EntryDraft(state, NOW, TIMING), ClaimReceipt(1, LATER.ticks, 1)
    assert [make_available_now(draft, LATER), make_available_now(draft, other)] == ["waiting", "refused"]
