"""Limits of one request."""

from __future__ import annotations

import msgspec

from queuey.model.messages import DEFAULT_TTL

KIB = 1024
MIB = 1024 * KIB


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Upper bounds: settings of the deployment first, then constants of the API.

    Attributes:
        max_body: Max bytes of a message's body.
        longest_body: Max bytes of a body in any API of the deployment; 0 means ``max_body``.
        max_batch_bytes: Max bytes of a request with several messages.
        max_wait: Max seconds of a long poll.
        deadline: Approximate max seconds of any other request.
        page_bytes: Bytes after which an answer ends.
        default_ttl: TTL in seconds of messages if neither the message nor its queue has one.
        idempotency_ttl: Max seconds for which an idempotency key is remembered.
        claims_memory: Approximate max bytes of all claims in a process.
        threads: Max blocking calls that a process runs at the same time.
        max_batch: Max messages of a batch.
        max_ids: Max ids in a request.
        max_queue_name: Max characters of a queue's name.
        max_message_key: Max characters of a message's key.
        max_principals: Max principals of a queue.
        max_headers: Max headers of a message.
        max_header_bytes: Max total bytes of the names and values of a message's headers.
        max_content_type: Max characters of a content type.
        default_limit: Messages per partition in a read without a limit.
        max_limit: Max messages per partition in a read.
        max_queues_per_read: Max queues in a read.
        max_queues_per_stream: Max queues in a stream.
        default_list: Queues in a listing without a limit.
        max_list: Max queues in a listing.
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
        return max(self.max_body, self.longest_body)
