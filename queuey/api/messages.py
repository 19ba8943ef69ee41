"""Messages to post, and where they went."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

from queuey.api.values import Delay, Id, Partition, Timestamp, Ttl, bounded


class ScheduledMessage(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message as in a batch, without a delay. A string body is text; any other JSON value is kept as that value."""

    body: Any
    ttl: Ttl | None = None
    partition: Partition | None = None
    message_key: Annotated[str, bounded("max_message_key")] | None = None
    content_type: Annotated[str, bounded("max_content_type")] | None = None
    headers: dict[str, str] | None = None
    encoding: Literal["base64"] | None = None


class BatchItem(ScheduledMessage, frozen=True, kw_only=True, omit_defaults=True):
    """A message of a batch. A string body is text; any other JSON value is kept as that value."""

    delay: Delay | None = None


class MessagesToPost(Struct, frozen=True):
    """Messages to post, all or none."""

    messages: Annotated[list[BatchItem], bounded("max_batch")]


class PostedMessage(Struct, frozen=True):
    """The place of a stored message; ``key`` is its id."""

    id: Id = field(name="key")
    timestamp: Timestamp
    partition: Partition


class Posted(Struct, frozen=True, tag_field="status", tag="ok"):
    """The messages posted, in the order given."""

    messages: list[PostedMessage]


class FetchQuery(Struct, frozen=True, kw_only=True):
    """The form of a message that is asked for."""

    raw: Annotated[bool, Meta(description="With one id: the bytes as they were posted")] = False
