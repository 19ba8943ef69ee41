"""Parameters of SQS actions, as structs."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple, TypeVar
from urllib.parse import quote, unquote

from msgspec import Meta, Struct, ValidationError, convert

from queuey.facades.sqs.attributes import ACCOUNT
from queuey.facades.sqs.errors import SqsError, missing
from queuey.facades.sqs.protocols import ActionCall
from queuey.web.endpoint import Match
from queuey.web.requests import Request

T = TypeVar("T")
MAX_ENTRIES = 10
"""Max entries of a batch, and messages of a receive."""
Entries = Annotated[list[T], Meta(max_length=1000)]
"""Entries of a batch. A longer list is refused before its entries are parsed, to keep the event loop free."""

Result = dict[str, Any]
"""Result of an action, by the names of AWS JSON."""


class QueueParameters(Struct, rename="pascal", kw_only=True):
    """Parameters of an action on a queue. Without a URL, the request's path names the queue."""

    queue_url: str = ""


class Permission(QueueParameters):
    """AddPermission and RemovePermission, which are always refused."""


class CreateQueue(Struct, rename="pascal", kw_only=True):
    queue_name: str
    attributes: dict[str, str] = {}
    tags: dict[str, str] = {}


class GetQueueUrl(Struct, rename="pascal", kw_only=True):
    queue_name: str


class GetQueueAttributes(QueueParameters):
    attribute_names: list[str] = []


class SetQueueAttributes(QueueParameters):
    attributes: dict[str, str]


class ListQueues(Struct, rename="pascal", kw_only=True):
    queue_name_prefix: str = ""
    next_token: str | None = None
    max_results: int | None = None


class ListSources(QueueParameters):
    """ListDeadLetterSourceQueues."""

    next_token: str | None = None
    max_results: int | None = None


class TagQueue(QueueParameters):
    tags: dict[str, str]


class UntagQueue(QueueParameters):
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


class CancelMessageMoveTask(Struct, rename="pascal", kw_only=True):
    """CancelMessageMoveTask."""

    task_handle: str


class AttributeValue(Struct, rename="pascal", kw_only=True, omit_defaults=True):
    """Value of a message attribute; a binary value is base64."""

    data_type: str
    string_value: str | None = None
    binary_value: str | None = None


class MessageParameters(Struct, rename="pascal", kw_only=True):
    message_body: str
    delay_seconds: int | None = None
    message_attributes: dict[str, AttributeValue] = {}
    message_system_attributes: dict[str, AttributeValue] = {}
    message_deduplication_id: str | None = None
    message_group_id: str | None = None


class SendMessage(MessageParameters):
    queue_url: str = ""


class BatchEntry(Struct, rename="pascal", kw_only=True):
    """An entry of a batch."""

    id: str


class SentEntry(MessageParameters):
    """An entry of SendMessageBatch."""

    id: str


class SendMessageBatch(QueueParameters):
    entries: Entries[SentEntry]


class ReceiveMessage(QueueParameters):
    attribute_names: list[str] = []
    message_system_attribute_names: list[str] = []
    message_attribute_names: list[str] = []
    max_number_of_messages: int = 1
    visibility_timeout: int | None = None
    wait_time_seconds: int | None = None


class DeletedEntry(BatchEntry):
    """An entry of DeleteMessageBatch."""

    receipt_handle: str


class DeleteMessage(QueueParameters):
    receipt_handle: str


class DeleteMessageBatch(QueueParameters):
    entries: Entries[DeletedEntry]


class ChangedEntry(BatchEntry):
    """An entry of ChangeMessageVisibilityBatch."""

    receipt_handle: str
    visibility_timeout: int | None = None


class ChangeVisibility(QueueParameters):
    """ChangeMessageVisibility."""

    receipt_handle: str
    visibility_timeout: int


class ChangeVisibilityBatch(QueueParameters):
    """ChangeMessageVisibilityBatch."""

    entries: Entries[ChangedEntry]


class SignedRequest(NamedTuple):
    """A request whose signature is verified.

    Attributes:
        call: Action and parameters.
        application: Application of the access key that signed the request.
        prefix: Path prefix of the facade.
        queue: Queue in the request's path; blank if the path has none.
    """

    request: Request
    call: ActionCall
    application: str
    region: str
    prefix: str
    queue: str

    def read(self, kind: type[T]) -> T:
        """Converts the parameters of the action to a struct; numbers may be given as text.

        Raises:
            SqsError: A parameter is missing or has the wrong type.
        """
        try:
            return convert(self.call.parameters, kind, strict=False)
        except ValidationError as error:
            text = str(error)
            name = "MissingParameter" if "missing required field" in text else "InvalidParameterValue"
            raise SqsError(name, f"{self.call.action}: {text}") from None

    def match_of_url(self, url: str) -> Match:
        """Returns application and queue of a URL, or of the request's path if the URL names none.

        Only the last part of the URL counts, not its host and account.

        Raises:
            SqsError: Neither the URL nor the request's path names a queue.
        """
        name = unquote(url.rpartition("/")[2]) or self.queue
        if not name:
            raise missing("QueueUrl")
        return {"app": self.application, "queue": name}

    def match_of_name(self, name: str) -> Match:
        return {"app": self.application, "queue": name}

    def url_of(self, name: str) -> str:
        return f"{self.request.origin}{self.prefix}/{ACCOUNT}/{quote(name, safe='')}"
