"""Messages as their producers give them, and the keys of posts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from hashlib import blake2b

import msgspec

from queuey.messages import Meta, NewMessage, PostKey

LEAST = 60
"""Min seconds for which a key is remembered: posts of short-lived messages are repeated as well."""

_encode = msgspec.msgpack.Encoder().encode
_NOTHING = Meta()


class Draft(msgspec.Struct, gc=False):
    """A message as its producer gives it.

    Attributes:
        body: ``str`` for text, ``bytes`` for anything else. Never empty.
        partition: None: chosen, by ``key`` if there is one.
        ttl: Seconds; None: the queue's, or else the deployment's.
        key: Messages of one key go to one partition.
        delay: Seconds until it is due.
    """

    body: str | bytes
    ttl: int | None = None
    partition: int | None = None
    meta: Meta | None = None
    delay: float = 0.0
    key: str | None = None


def key_of(text: str, drafts: Sequence[Draft], items: Sequence[NewMessage], most: int) -> PostKey:
    """Returns the key of a post.

    Args:
        text: From the caller.
        drafts: Its messages, without what the service chooses: a repeated post may get another partition.
        items: The same messages, addressed.
        most: Max seconds for which a key is remembered.
    """
    longest = max((item.ttl + math.ceil(item.delay) for item in items), default=0)
    return PostKey(text, content_of(drafts), min(most, max(LEAST, longest)))


def content_of(drafts: Sequence[Draft]) -> bytes:
    """Returns a hash of everything that a caller says about messages. It must stay the same in other versions."""
    said = []
    for draft in drafts:
        meta = draft.meta or _NOTHING
        place = (draft.partition, draft.key, draft.ttl, draft.delay)
        said.append((draft.body, *place, meta.content_type, meta.headers, meta.json))
    return blake2b(_encode(said), digest_size=16).digest()
