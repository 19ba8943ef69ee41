"""Idempotency keys of posts: what makes two posts the same, and for how long a key is remembered."""

from __future__ import annotations

import math
from collections.abc import Sequence
from hashlib import blake2b

import msgspec

from queuey.messages import Meta, NewMessage, PostKey
from queuey.service.drafts import Draft

LEAST = 60
"""Seconds for which a key is remembered at least: posts of short-lived messages are repeated as well."""

_encode = msgspec.msgpack.Encoder().encode
_NOTHING = Meta()


def key_of(text: str, drafts: Sequence[Draft], items: Sequence[NewMessage], most: int) -> PostKey:
    """Returns the key of a post.

    Args:
        text: What the caller calls it.
        drafts: What it posts. What the service has chosen does not count: a repeated post may get another partition.
        items: The same messages, addressed.
        most: Seconds for which a key is remembered at most.
    """
    longest = max((item.ttl + math.ceil(item.delay) for item in items), default=0)
    return PostKey(text, content_of(drafts), min(most, max(LEAST, longest)))


def content_of(drafts: Sequence[Draft]) -> bytes:
    """Returns a hash of everything that a caller says about messages. Other versions must find the same."""
    said = []
    for draft in drafts:
        meta = draft.meta or _NOTHING
        place = (draft.partition, draft.key, draft.ttl, draft.delay)
        said.append((draft.body, *place, meta.content_type, meta.headers, meta.json))
    return blake2b(_encode(said), digest_size=16).digest()
