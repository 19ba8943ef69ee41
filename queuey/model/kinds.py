"""What the kinds of queues are: where a message goes, what a post may have, and which acts a queue refuses.

A queue is plain, dedup or ordered by its option ``kind``; a plain queue with ``max_claimed_per_key`` is *limited*. The
rest of the service asks for a trait or an act by its name (:class:`Traits`), never for the kind. What claims do with
each kind is in ``queuey.claims.rules.kinds``.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from hashlib import blake2b
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from queuey.model.errors import InvalidRequest
from queuey.model.partitions import by_key

if TYPE_CHECKING:
    from queuey.model.messages import ChosenOptions, Message, Meta, NewMessage, Queue


class Traits(msgspec.Struct, frozen=True):
    """What a queue is and does by its kind.

    Attributes:
        name: ``plain``, ``limited``, ``dedup`` or ``ordered``.
        about: What claims deliver, for people. May have fields of ``queue``, as do all texts here.
        refuses: The acts that a queue refuses, and the text that the caller gets.
        unites_bodies: Equal bodies go to one partition, and only one of several waiting messages is delivered.
        stores_keys: A message keeps its key, and the key alone determines its partition.
        in_order: Messages of one key are claimed one after another.
        waits_for: Code of the reason for which a message may wait for others.
    """

    name: str
    about: str = ""
    refuses: Mapping[str, str] = MappingProxyType({})
    unites_bodies: bool = False
    stores_keys: bool = False
    in_order: bool = False
    waits_for: Literal["", "duplicates", "order"] = ""

    def refusal(self, act: str, queue: Queue) -> str | None:
        text = self.refuses.get(act)
        return text and text.format(queue=queue)

    def check(self, act: str, queue: Queue, field: str) -> None:
        if (text := self.refusal(act, queue)) is not None:
            raise InvalidRequest({field: text})

    def check_post(self, queue: Queue, key: str | None, partition: int | None) -> None:
        if partition is not None:
            self.check("post to partition", queue, "partition")
        self.check("post" if key is None else "post with key", queue, "message_key")

    def choose_partition(self, body: str | bytes, meta: Meta | None, key: str | None, partitions: int) -> int | None:
        """Returns the partition that the body or the key determines; None if any partition will do."""
        if self.unites_bodies:
            return choose_partition(compute_body_digest(body, meta), partitions)
        return by_key(key, partitions) if self.stores_keys and key is not None else None


def _refuse(queue: str, places: str, delivers: str, *posts: str) -> dict[str, str]:
    """Returns what a queue that is not plain refuses: some ``posts``, and what all such queues refuse."""
    chosen = f"{places} into one partition and chooses the ids."
    name = f"Queue {{queue.name!r}} {queue}"
    return dict.fromkeys(posts, f"{chosen} Leave it out.") | {
        "put": f"{chosen} POST the message instead.",
        "write from Spark": f"{name}: Spark cannot write to it. POST the messages instead.",
        "add partitions": f"{name}: its {{queue.partitions}} partitions never change. Create another queue.",
        "deliver early": f"It is delayed, and queue {{queue.name!r}} delivers {delivers}, so it waits until it is due",
    }


_NO_MOVE = {"move": "No messages can be moved from queue {queue.name!r} or to it: it delivers by keys"}
_NO_NAME = {"name": "Messages of this queue have no names, because it is {queue.kind}. Leave it out."}
_POSTS = ("post to partition", "post with key")
PLAIN = Traits("plain")
LIMITED = Traits(
    "limited",
    about="At most {queue.max_claimed_per_key} of one key are claimed at once.",
    refuses=_NO_MOVE
    | _refuse("has max_claimed_per_key", "A queue with max_claimed_per_key puts those of a key", "by keys"),
    stores_keys=True,
)
DEDUP = Traits(
    "dedup",
    about="If several waiting messages have equal bodies, only one of them is delivered.",
    refuses=_NO_NAME | _refuse("is dedup", "A dedup queue puts equal bodies", "equal messages once", *_POSTS),
    unites_bodies=True,
    waits_for="duplicates",
)
ORDERED = Traits(
    "ordered",
    about="Messages of one key are claimed one after another.",
    refuses=_NO_MOVE
    | _NO_NAME
    | {"post": "Required: this queue is ordered by keys"}
    | _refuse("is ordered", "An ordered queue puts the messages of a key", "by keys", *_POSTS[:1]),
    stores_keys=True,
    in_order=True,
    waits_for="order",
)
TRAITS = {traits.name: traits for traits in (PLAIN, LIMITED, DEDUP, ORDERED)}


def kind_of(queue: ChosenOptions) -> Traits:
    return LIMITED if queue.max_claimed_per_key else TRAITS[queue.kind]


def check_options(fields: Mapping[str, Any]) -> None:
    if fields["max_claimed_per_key"] and fields["kind"] != "plain":
        text = f"Only a plain queue can have it, but this queue has the kind {fields['kind']}. Omit one of them."
        raise InvalidRequest({"max_claimed_per_key": text})
    _check_max_claimed(fields)


def check_changes(queue: Queue, fields: Mapping[str, Any]) -> None:
    fields = {"kind": queue.kind, "max_claimed": queue.max_claimed, "partitions": queue.partitions} | dict(fields)
    by_key = queue.max_claimed_per_key
    text = None
    if fields["kind"] != queue.kind:
        text = f"Queue {queue.name!r} is {queue.kind}, which never changes. Create another queue."
    elif bool(fields.get("max_claimed_per_key", by_key)) != bool(by_key):
        done = "set to 0" if by_key else "set afterwards"
        text = f"Queue {queue.name!r} has max_claimed_per_key {by_key}: it cannot be {done}. Create another queue."
    elif fields["partitions"] != queue.partitions:
        text = queue.traits.refusal("add partitions", queue)
    if text is not None:
        raise InvalidRequest({"InvalidUpdate": text}, code="InvalidUpdate")
    _check_max_claimed(fields)


def _check_max_claimed(fields: Mapping[str, Any]) -> None:
    limit, partitions = fields["max_claimed"], fields["partitions"]
    if 0 < limit < partitions:
        text = f"{limit} cannot be divided among {partitions} partitions. Give at least {partitions}, or 0: no limit."
        raise InvalidRequest({"max_claimed": text})


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

    It is the one that the target's kind determines, else ``partition``, modulo the number of the target's partitions.
    """
    key = None if message.meta is None else message.meta.key
    chosen = target.traits.choose_partition(message.body, message.meta, key, target.partitions)
    return (partition - 1) % target.partitions + 1 if chosen is None else chosen
