"""Requests of SQS, with the parameter names of its protocols."""

from __future__ import annotations

from typing import Annotated, TypeVar

from msgspec import Meta, Struct

T = TypeVar("T")
MAX_ENTRIES = 10
"""Max entries of a batch, and messages of a receive."""
Entries = Annotated[list[T], Meta(max_length=1000)]
"""Entries of a batch. Of a longer list not one is read: that would take long, on the event loop."""


class OfQueue(Struct, rename="pascal", kw_only=True):
    """A request about one queue; without a URL it is the one of the request's path."""

    queue_url: str = ""


class Permission(OfQueue):
    """AddPermission, RemovePermission: refused, whatever they say."""


class CreateQueue(Struct, rename="pascal", kw_only=True):
    queue_name: str
    attributes: dict[str, str] = {}
    tags: dict[str, str] = {}


class GetQueueUrl(Struct, rename="pascal", kw_only=True):
    queue_name: str


class GetQueueAttributes(OfQueue):
    attribute_names: list[str] = []


class SetQueueAttributes(OfQueue):
    attributes: dict[str, str]


class ListQueues(Struct, rename="pascal", kw_only=True):
    queue_name_prefix: str = ""
    next_token: str | None = None
    max_results: int | None = None


class ListSources(OfQueue):
    """ListDeadLetterSourceQueues."""

    next_token: str | None = None
    max_results: int | None = None


class TagQueue(OfQueue):
    tags: dict[str, str]


class UntagQueue(OfQueue):
    tag_keys: list[str]


class StartMove(Struct, rename="pascal", kw_only=True):
    """StartMessageMoveTask."""

    source_arn: str
    destination_arn: str | None = None
    max_number_of_messages_per_second: int | None = None


class ListMoves(Struct, rename="pascal", kw_only=True):
    """ListMessageMoveTasks."""

    source_arn: str
    max_results: int | None = None


class CancelMove(Struct, rename="pascal", kw_only=True):
    """CancelMessageMoveTask."""

    task_handle: str


class AttributeValue(Struct, rename="pascal", kw_only=True, omit_defaults=True):
    """The value of a message's attribute; binary ones are base64."""

    data_type: str
    string_value: str | None = None
    binary_value: str | None = None


class Sent(Struct, rename="pascal", kw_only=True):
    message_body: str
    delay_seconds: int | None = None
    message_attributes: dict[str, AttributeValue] = {}
    message_system_attributes: dict[str, AttributeValue] = {}
    message_deduplication_id: str | None = None
    message_group_id: str | None = None


class SendMessage(Sent):
    queue_url: str = ""


class Entry(Struct, rename="pascal", kw_only=True):
    """An entry of a batch."""

    id: str


class SentEntry(Sent):
    """An entry of SendMessageBatch."""

    id: str


class SendMessageBatch(OfQueue):
    entries: Entries[SentEntry]


class ReceiveMessage(OfQueue):
    attribute_names: list[str] = []
    message_system_attribute_names: list[str] = []
    message_attribute_names: list[str] = []
    max_number_of_messages: int = 1
    visibility_timeout: int | None = None
    wait_time_seconds: int | None = None


class DeletedEntry(Entry):
    """An entry of DeleteMessageBatch."""

    receipt_handle: str


class DeleteMessage(OfQueue):
    receipt_handle: str


class DeleteMessageBatch(OfQueue):
    entries: Entries[DeletedEntry]


class ChangedEntry(Entry):
    """An entry of ChangeMessageVisibilityBatch."""

    receipt_handle: str
    visibility_timeout: int | None = None


class ChangeVisibility(OfQueue):
    """ChangeMessageVisibility."""

    receipt_handle: str
    visibility_timeout: int


class ChangeVisibilityBatch(OfQueue):
    """ChangeMessageVisibilityBatch."""

    entries: Entries[ChangedEntry]
