"""Equal bodies: their digests, and the partition of a dedup queue in which all copies of a body are."""

from __future__ import annotations

from contextlib import suppress
from hashlib import blake2b

import msgspec

from queuey.model.messages import Message, Meta, NewMessage, Queue
from queuey.model.partitions import by_key


def compute_body_digest(body: str | bytes, meta: Meta | None) -> bytes:
    """Returns a digest of 16 bytes; equal bodies have equal digests.

    JSON bodies are compared as text, ignoring white space between tokens; all other bodies are compared byte by byte. A
    JSON body never equals one that is not JSON. Content types and headers do not count.
    """
    is_json = meta is not None and meta.json
    data = body.encode("utf-8", "surrogatepass") if isinstance(body, str) else body
    if is_json:
        with suppress(msgspec.MsgspecError):
            data = msgspec.json.format(data, indent=-1)
    return blake2b(data, digest_size=16, person=b"json" if is_json else b"").digest()


def choose_partition(digest: bytes, partitions: int) -> int:
    return int.from_bytes(digest[:8], "big") % partitions + 1


def choose_target_partition(message: Message | NewMessage, partition: int, target: Queue) -> int:
    """Returns the partition of ``target`` for a message of another queue's ``partition``.

    A dedup queue chooses it by the body. A queue that keeps keys chooses it by the message's key, if it has one.
    Otherwise it is ``partition``, modulo the number of partitions of ``target``.
    """
    if target.kind == "dedup":
        return choose_partition(compute_body_digest(message.body, message.meta), target.partitions)
    if target.keeps_keys and message.meta is not None and message.meta.key is not None:
        return by_key(message.meta.key, target.partitions)
    return (partition - 1) % target.partitions + 1
