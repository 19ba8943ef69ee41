"""A caller's request for messages."""

from __future__ import annotations

import msgspec

from queuey.messages import Message


class Poll(msgspec.Struct, gc=False):
    """One caller's request for messages.

    Attributes:
        limit: Max messages.
        ttl: Seconds of the claims; 0: only show messages.
        max_bytes: Bytes of the messages in the answer, not counting the last one.
        worker: The caller's name for itself; blank: none.
        given: Its messages, set by :meth:`queuey.claims.drafts.EntryDraft.deliver`.
    """

    limit: int
    ttl: float
    max_bytes: int
    worker: str = ""
    given: list[Message] = []
