"""A caller's request for messages."""

from __future__ import annotations

import msgspec

from queuey.model.messages import Message


class Poll(msgspec.Struct, gc=False):
    """One caller's request for messages.

    Attributes:
        limit: Max messages.
        ttl: Duration of the claims in seconds; 0: return messages without claiming them.
        max_bytes: Max bytes of the messages in the answer, not counting the last one.
        worker: The caller's name for itself; may be blank.
        given: The messages for the caller, set by :meth:`queuey.claims.rules.entry_draft.EntryDraft.deliver`.
    """

    limit: int
    ttl: float
    max_bytes: int
    worker: str = ""
    given: list[Message] = []
