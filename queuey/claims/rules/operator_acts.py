"""Operator actions on single messages. Each adds its changes to the next entry and returns the resulting status."""

from __future__ import annotations

from typing import Literal

from queuey.claims.rules.entry_draft import EntryDraft
from queuey.claims.rules.partition_state import MAX_ABOVE
from queuey.claims.rules.receipts import ClaimReceipt, ReceiptStatus

JobStanding = Literal["claimed", "waiting", "delayed", "removed", "done", "refused"]
"""Status of a message after an action.

``claimed``: a worker has it. ``waiting``: the next poll may receive it. ``delayed``: it is not due, and nothing was
changed. ``removed``: the action ended it. ``done``: it was done before. ``refused``: the partition remembers too many
messages, or the queue's kind delivers nothing early."""
MAX_KNOWN_WITH_EARLY = MAX_ABOVE // 2
"""Max messages outstanding or done above the cursor for a message to be delivered early. An early message is remembered
until it is due, and a partition that remembers ``MAX_ABOVE`` messages is not read any further."""
_STANDING_BY_STATUS: dict[ReceiptStatus, JobStanding] = {
    ReceiptStatus.ACCEPTED: "removed",
    ReceiptStatus.REFUSED: "refused",
}


def cancel(draft: EntryDraft, message: ClaimReceipt) -> JobStanding:
    """Ends a message that no worker has; otherwise asks the worker of the live claim to stop.

    A delayed message is left to the caller: deleting its row ends it, because no process has read it. So the log does
    not have to remember it until it is due.

    Args:
        draft: The next entry.
        message: A receipt with the number 0, which matches any delivery.

    Returns:
        ``claimed`` if a worker has the message, ``delayed`` if it is not due, ``removed`` if this ended it, ``done`` if
        it had ended, ``refused`` if the partition remembers too many done messages.
    """
    position = message.position
    if draft.is_done_here(position):
        return "done"
    if draft.is_live(position):
        draft.ask_to_stop(position)
        return "claimed"
    is_known = draft.was_delivered(position) or draft.verify([message])[0].status is not ReceiptStatus.ACCEPTED
    if not is_known and position > draft.latest_position():
        return "delayed"
    return _STANDING_BY_STATUS.get(draft.acknowledge([message])[0].status, "done")


def make_available_now(draft: EntryDraft, message: ClaimReceipt) -> JobStanding:
    """Makes a resting or delayed message available to the next poll; a cancelled one becomes done instead.

    Users call this a retry. For the arguments see :func:`cancel`.

    Returns:
        ``claimed`` if a worker has the message (nothing changes), ``waiting`` if the next poll may receive it, ``done``
        if it has ended or ends now, ``refused`` if it is delayed and the partition remembers
        ``MAX_KNOWN_WITH_EARLY`` messages, or the queue's kind delivers nothing early.
    """
    position = message.position
    if draft.is_live(position):
        return "claimed"
    if draft.is_done_here(position) or draft.verify([message])[0].status is not ReceiptStatus.ACCEPTED:
        return "done"
    if draft.was_delivered(position):
        draft.release([message])
        return "done" if draft.is_done_here(position) else "waiting"  # Done if it was cancelled.
    if position > draft.latest_position() and not draft.add_as_ended(position, MAX_KNOWN_WITH_EARLY):
        return "refused"
    return "waiting"
