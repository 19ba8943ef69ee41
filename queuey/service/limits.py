"""Limits of one request."""

from __future__ import annotations

import msgspec

from queuey.messages import DEFAULT_TTL

KIB = 1024
MIB = 1024 * KIB


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Upper bounds: settings of the deployment first, then constants of the API.

    Attributes:
        max_body: Bytes of one message's body.
        longest_body: Bytes of the longest body that any API of the deployment takes; 0: ``max_body``.
        max_batch_bytes: Bytes of a whole request that carries several messages.
        max_wait: Seconds of one long poll.
        deadline: Seconds of any other request, about.
        page_bytes: Bytes of one answer, at which it ends.
        default_ttl: Seconds of a message's life if neither it nor its queue has a TTL.
        idempotency_ttl: Seconds for which an idempotency key is remembered.
        claims_memory: Bytes of all claims in a process, about.
        threads: Calls that a process works on at the same time.
        max_batch: Messages in one batch.
        max_ids: Ids in one request.
        max_queue_name: Characters.
        max_message_key: Characters.
        max_principals: Principals of one queue.
        max_headers: Headers kept with one message.
        max_header_bytes: Bytes of their names and values together.
        max_content_type: Characters.
        default_limit: Messages per partition when a read names no limit.
        max_limit: Messages per partition that a read may ask for.
        max_queues_per_read: Queues in one read.
        max_queues_per_stream: Queues in one stream.
        default_list: Queues in a listing that names no limit.
        max_list: Queues that a listing may ask for.
    """

    max_body: int = 256 * KIB
    max_batch_bytes: int = 8 * MIB
    max_wait: float = 20.0
    deadline: float = 15.0
    page_bytes: int = 8 * MIB
    default_ttl: int = DEFAULT_TTL
    idempotency_ttl: int = 86_400
    claims_memory: int = 64 * MIB
    threads: int = 8

    longest_body: int = 0
    max_batch: int = 1000
    max_ids: int = 1000
    max_queue_name: int = 50
    max_message_key: int = 256
    max_principals: int = 100
    max_headers: int = 16
    max_header_bytes: int = 8 * KIB
    max_content_type: int = 200
    default_limit: int = 100
    max_limit: int = 1000
    max_queues_per_read: int = 100
    max_queues_per_stream: int = 1000
    default_list: int = 1000
    max_list: int = 10_000

    @property
    def longest(self) -> int:
        """Bytes of the longest body that a stored message can have."""
        return max(self.max_body, self.longest_body)
