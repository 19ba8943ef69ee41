"""Calls about claims: claim messages, then acknowledge, renew or release them by their receipts.

All of them may be sent again after an answer that was lost:

* *acknowledge*, *renew* and *release* name the claim by its receipt. Done twice they are the same as done once.
  A *claim* may acknowledge as well.
* A *claim* whose answer was lost has claimed messages for no caller. They are delivered again later, with
  one more delivery counted, whether or not the call is sent again.

The one exception is *release all*: sent again it might release what was claimed in between.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from queuey.client.calls.call import (
    JSON,
    Call,
    HttpAnswer,
    decode,
    encode,
    nothing,
    number_text,
    partitions_text,
    queue_segment,
    reads,
)
from queuey.client.calls.read_calls import Partitions, WireMessage, messages_of, plain_messages
from queuey.client.errors import InvalidArgument
from queuey.client.results import ClaimCounts, Claimed, Message, QueueSize, Received, Refused

RECEIPTS_PER_CALL = 1000
"""The server's limit."""

Claim = str | Claimed
"""A claim: its receipt, or what a call returned."""


class _WireClaim(WireMessage, frozen=True, kw_only=True, gc=False):
    receipt: str
    deliveries: int
    expires: float


class _WireClaims(msgspec.Struct, frozen=True):
    messages: tuple[_WireClaim, ...]
    acknowledged: tuple[Refused, ...] = ()


def claim(
    queue: str, limit: int, ttl: float, wait: float, partitions: Partitions, acknowledged: Sequence[str] = ()
) -> Call[Received]:
    """Claims up to ``limit`` messages for ``ttl`` seconds; waits for some up to ``wait`` seconds.

    Before that, and at once, it acknowledges up to :data:`RECEIPTS_PER_CALL` receipts.
    """
    params = [("limit", number_text("limit", limit)), ("ttl", number_text("ttl", ttl))]
    if wait:
        params.append(("wait", number_text("wait", wait)))
    named = partitions_text(partitions)
    if named != "*":
        params.append(("partitions", named))
    path = f"{queue_segment(queue)}/claims"
    content = encode({"acknowledge": list(acknowledged)}) if acknowledged else None
    headers = JSON if acknowledged else {}
    return Call(
        "POST", path, _claimed, params=tuple(params), headers=headers, content=content, repeatable=True, wait=wait
    )


def acknowledge(queue: str, receipts: Iterable[str]) -> Iterator[Call[None]]:
    """Says that messages are done; no call for no receipts."""
    return _by_receipts(queue, "ack", receipts)


def release(queue: str, receipts: Iterable[str], delay: float = 0.0) -> Iterator[Call[None]]:
    """Gives messages back, now or in ``delay`` seconds; no call for no receipts."""
    return _by_receipts(queue, "release", receipts, **({"delay": delay} if delay else {}))


def renew(queue: str, receipts: Iterable[str], ttl: float) -> Iterator[Call[None]]:
    """Keeps messages for ``ttl`` seconds from now on, if they would not be kept longer anyway."""
    return _by_receipts(queue, "renew", receipts, ttl=ttl)


def release_all(queue: str) -> Call[None]:
    """Gives back all that is claimed, by whomever."""
    return Call("DELETE", f"{queue_segment(queue)}/claims", nothing)


def counts(queue: str) -> Call[ClaimCounts]:
    """Asks how many messages are claimed."""
    return Call("GET", f"{queue_segment(queue)}/claims", reads(ClaimCounts), repeatable=True)


def size(queue: str, limit: int | None) -> Call[QueueSize]:
    """Asks how many messages are not acknowledged, counted up to ``limit``."""
    params = () if limit is None else (("limit", number_text("limit", limit)),)
    path = f"{queue_segment(queue)}/size"
    return Call("GET", path, reads(QueueSize), params=params, repeatable=True)


def peek(queue: str, limit: int) -> Call[list[Message]]:
    """Returns the oldest messages that are not acknowledged."""
    params = (("limit", number_text("limit", limit)),)
    return Call("GET", f"{queue_segment(queue)}/peek", messages_of, params=params, repeatable=True)


def receipts_of(claims: Claim | Iterable[Claim]) -> list[str]:
    """Returns the receipts of one claim or several.

    Raises:
        InvalidArgument: Something else was given.
    """
    given = [claims] if isinstance(claims, str | Claimed) else claims
    receipts = [claim.receipt if isinstance(claim, Claimed) else claim for claim in given]
    for receipt in receipts:
        if not receipt:
            raise InvalidArgument(f"{receipt!r} is not a receipt: give what a claim has returned")
    return receipts


def _by_receipts(queue: str, what: str, receipts: Iterable[str], **fields: float) -> Iterator[Call[None]]:
    path, given = f"{queue_segment(queue)}/claims/{what}", list(receipts)
    for start in range(0, len(given), RECEIPTS_PER_CALL):
        content = encode({"receipts": given[start : start + RECEIPTS_PER_CALL], **fields})
        yield Call("POST", path, nothing, headers=JSON, content=content, repeatable=True)


def _claimed(answer: HttpAnswer) -> Received:
    found = decode(answer, _WireClaims)
    pairs = zip(plain_messages(found.messages), found.messages, strict=True)
    claimed = [Claimed(message, wire.receipt, wire.deliveries, wire.expires) for message, wire in pairs]
    return Received(claimed, [each for each in found.acknowledged if each.status != "ok"])
