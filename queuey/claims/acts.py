"""Acts of operators on messages: each adds its part to the next entry, and returns what the message is then."""

from __future__ import annotations

from typing import Literal

from queuey.claims.drafts import EntryDraft
from queuey.claims.receipts import ClaimReceipt, ReceiptStatus
from queuey.claims.state import MOST_ABOVE

JobStanding = Literal["claimed", "waiting", "delayed", "removed", "done", "refused"]
"""A message after an act: a worker has it; the next poll may have it; it is not due, and nothing was changed; the act
has ended it; it was done before; or the act is refused, because the partition remembers too many messages, or the queue
keeps keys or is a dedup queue."""
MAX_KNOWN_WITH_EARLY = MOST_ABOVE // 2
"""Max messages that are outstanding or done above the cursor when one is delivered before it is due. It is remembered
until then, and with ``MOST_ABOVE`` nothing is read any more."""
_ENDED: dict[ReceiptStatus, JobStanding] = {ReceiptStatus.DONE: "removed", ReceiptStatus.REFUSED: "refused"}


def cancel(draft: EntryDraft, message: ClaimReceipt) -> JobStanding:
    """Ends a message that nobody works on; asks the worker of a live claim to stop.

    A message that is not due can be ended by deleting it, because no process has read it. So the log need not remember
    it until then.

    Args:
        draft: The next entry.
        message: With the number 0: whatever its last delivery was.
    """
    position = message.position
    if draft.is_ended_here(position):
        return "done"
    if draft.is_live(position):
        draft.ask_to_stop(position)
        return "claimed"
    is_known = draft.was_delivered(position) or draft.verify([message])[0].status is not ReceiptStatus.DONE
    if not is_known and position > draft.latest():
        return "delayed"
    return _ENDED.get(draft.acknowledge([message])[0].status, "done")


def hasten(draft: EntryDraft, message: ClaimReceipt) -> JobStanding:
    """Lets the next poll have a message that rests or is delayed; see :func:`cancel`."""
    position = message.position
    if draft.is_live(position):
        return "claimed"
    if draft.is_ended_here(position) or draft.verify([message])[0].status is not ReceiptStatus.DONE:
        return "done"
    if draft.was_delivered(position):
        draft.release([message])
        return "done" if draft.is_ended_here(position) else "waiting"  # It was cancelled, and its claim has ended.
    if position > draft.latest() and not draft.begin_ended(position, MAX_KNOWN_WITH_EARLY):
        return "refused"
    return "waiting"
