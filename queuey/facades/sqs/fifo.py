"""FIFO queues: groups, whose order is kept, and deduplication ids, by which a message is stored once.

A group is the key of a message in a queue of the kind ``ordered``. A deduplication id is the key of a post.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from hashlib import sha256
from typing import NamedTuple

from queuey.facades.sqs import messages
from queuey.facades.sqs.attributes import Kept, kept_of
from queuey.facades.sqs.errors import SqsError, invalid, missing
from queuey.facades.sqs.requests import Sent
from queuey.messages import PostKey, Queue
from queuey.service import Draft

DEDUP_INTERVAL = 300
"""Interval for which a deduplication id is remembered, in seconds."""
NO_ID = "The queue should either have ContentBasedDeduplication enabled or MessageDeduplicationId provided explicitly"


class FifoDraft(NamedTuple):
    """A message of a FIFO queue that is to be sent, and the key of its post."""

    draft: Draft
    key: PostKey


def draft_of(given: Sent, queue: Queue, trace: str) -> FifoDraft:
    """Returns a message that is to be sent to a FIFO queue.

    Raises:
        SqsError: It is none that SQS takes.
    """
    kept = kept_of(queue)
    group = given.message_group_id
    if group is None:
        raise missing("MessageGroupId")
    messages.check_id("MessageGroupId", group)
    if given.delay_seconds:
        reason = "The request include parameter that is not valid for this queue type."
        raise invalid("DelaySeconds", given.delay_seconds, reason)
    deduplication = _deduplication(given, kept)
    draft = messages.draft_of(given, kept.delay, time.time(), kept.size, trace, fifo=True, deduplication=deduplication)
    scope = group if kept.scope == "messageGroup" else ""
    return FifoDraft(draft, _key(scope, deduplication))


def check_batch(entries: Iterable[Sent], queue: Queue) -> None:
    """Refuses all of a batch, as Amazon does, when one message has no group or no deduplication id.

    Raises:
        SqsError: One has not.
    """
    by_content = kept_of(queue).by_content
    for one in entries:
        if one.message_group_id is None:
            raise SqsError("InvalidParameterValue", "The request must contain the parameter MessageGroupId.")
        if one.message_deduplication_id is None and not by_content:
            raise SqsError("InvalidParameterValue", NO_ID)


def _deduplication(given: Sent, kept: Kept) -> str:
    name = given.message_deduplication_id
    if name is None and kept.by_content:
        return sha256(given.message_body.encode()).hexdigest()
    if name is None:
        raise SqsError("InvalidParameterValue", NO_ID)
    messages.check_id("MessageDeduplicationId", name)
    return name


def _key(scope: str, deduplication: str) -> PostKey:
    """Returns the key of a post, which no caller of another protocol can choose. What else is sent does not count."""
    digest = sha256(f"{scope}\0{deduplication}".encode())
    return PostKey(f"\x01sqs {digest.hexdigest()}", digest.digest()[:16], DEDUP_INTERVAL)
