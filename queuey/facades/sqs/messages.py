"""SQS messages: attributes, digests, ids, and limits of size and characters.

A FIFO queue is a queue of the kind ``ordered``. A message group is stored as the message key, which keeps the order of
the group. A deduplication id is stored as the idempotency key of the post.
"""

from __future__ import annotations

import json
import re
import time
from base64 import b64decode, b64encode
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from hashlib import md5, sha256
from struct import pack
from typing import Any, NamedTuple

import msgspec

from queuey.claims.log.log_requests import ClaimDelivery
from queuey.claims.rules.receipts import format_receipt
from queuey.facades.facade import message_id
from queuey.facades.sqs.attributes import StoredAttributes, arn_of, stored_attributes
from queuey.facades.sqs.errors import SqsError, invalid, missing
from queuey.facades.sqs.protocols import NOT_IN_XML
from queuey.facades.sqs.requests import AttributeValue, MessageParameters
from queuey.messages.posts import Draft
from queuey.model import deadletters, ids
from queuey.model.messages import Message, Meta, PostKey, Queue, body_bytes

SQS_HEADER = "sqs-attributes"
"""Header of a stored message that has its SQS fields as JSON (:class:`SqsAttributes`)."""
MAX_ATTRIBUTES = 10
_ALL_ATTRIBUTES_NAMES = frozenset({"All", "ALL", "*"})
"""Names that stand for all attributes; Celery's transport sends the second one."""
_ID = re.compile(r"[!-~]{1,128}")
_ATTRIBUTE = re.compile(r"[A-Za-z0-9_\-.]{1,256}")
_TYPE = re.compile(r"(String|Number|Binary)(\.[\x21-\x7e ]+)?")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?", re.ASCII)
_MAX_TYPE_LENGTH = 256
MAX_TRACE_LENGTH = 1024

DEDUP_INTERVAL = 300
"""Interval for which a deduplication id is remembered, in seconds."""
NO_ID_TEXT = (
    "The queue should either have ContentBasedDeduplication enabled or MessageDeduplicationId provided explicitly"
)


class SqsAttributes(msgspec.Struct, omit_defaults=True, frozen=True):
    """SQS fields of a message, stored in its header :data:`SQS_HEADER`.

    Attributes:
        attributes: Message attributes by name.
        trace: System attribute AWSTraceHeader.
        sent: When a delayed message was sent, in milliseconds since 1970. Its id has the time when it is due.
        group: Message group id in a standard queue; a FIFO queue stores it as the message key.
        deduplication: Deduplication id in a FIFO queue.
    """

    attributes: dict[str, AttributeValue] = {}
    trace: AttributeValue | None = None
    sent: int = 0
    group: str = ""
    deduplication: str = ""


_NO_ATTRIBUTES = SqsAttributes()
_decode = msgspec.json.Decoder(SqsAttributes).decode


def make_draft(
    message: MessageParameters,
    delay: int,
    now: float,
    max_bytes: int,
    request_trace: str,
    *,
    fifo: bool,
    deduplication: str = "",
) -> Draft:
    """Checks a message to send, and returns its draft.

    Args:
        delay: Delay of the request or of the queue, in seconds.
        request_trace: Trace header of the request, used for a message without one; blank if the request has none.
        deduplication: Deduplication id in a FIFO queue.

    Raises:
        SqsError: SQS does not allow the message.
    """
    size = size_of(message)
    if not message.message_body:
        raise SqsError("MissingParameter", "The request must contain the parameter MessageBody.")
    if size > max_bytes:
        raise invalid("MessageBody", f"of {size} bytes", f"Message must be shorter than {max_bytes} bytes.")
    if NOT_IN_XML.search(message.message_body) is not None:
        raise SqsError(
            "InvalidMessageContents", "The message has characters outside of #x9, #xA, #xD, #x20 to #xD7FF and so on."
        )
    _check_attributes(message.message_attributes)
    trace = (
        _find_trace(message.message_system_attributes, request_trace)
        if request_trace or message.message_system_attributes
        else None
    )
    group = message.message_group_id or ""
    sent = round(now * 1000) if delay else 0
    meta = None
    if message.message_attributes or trace or sent or (group and not fifo) or deduplication:
        sqs_fields = SqsAttributes(message.message_attributes, trace, sent, "" if fifo else group, deduplication)
        meta = Meta(headers=((SQS_HEADER, _make_header(sqs_fields)),))
    return Draft(message.message_body, delay=float(delay), meta=meta, key=group if fifo else None)


def _find_trace(attributes: Mapping[str, AttributeValue], request_trace: str) -> AttributeValue | None:
    trace = attributes.get("AWSTraceHeader")
    if trace is None and 0 < len(request_trace) <= MAX_TRACE_LENGTH:
        trace = AttributeValue(data_type="String", string_value=request_trace)
    elif trace is not None:
        _check_value("AWSTraceHeader", trace)
    if attributes.keys() - {"AWSTraceHeader"} or (
        trace is not None and (trace.data_type != "String" or len(trace.string_value or "") > MAX_TRACE_LENGTH)
    ):
        reason = f"Only AWSTraceHeader can be sent, of type String and at most {MAX_TRACE_LENGTH} characters."
        raise invalid("MessageSystemAttributes", "", reason)
    return trace


def check_id(name: str, text: str) -> None:
    if not _ID.fullmatch(text):
        raise invalid(
            name, text, f"{name} can only include alphanumeric and punctuation characters. 1 to 128 in length."
        )


def _make_header(sqs_fields: SqsAttributes) -> str:
    return json.dumps(msgspec.to_builtins(sqs_fields), separators=(",", ":"))


def size_of(message: MessageParameters) -> int:
    """Returns the size of a message in bytes: its body, and the names, types and values of its attributes.

    System attributes do not count; binary values count decoded.
    """
    size = body_bytes(message.message_body)
    for name, value in message.message_attributes.items():
        size += len(name) + len(value.data_type) + body_bytes(value.string_value or "")
        binary = value.binary_value or ""
        size += 3 * len(binary) // 4 - binary[-2:].count("=")
    return size


def _check_attributes(attributes: Mapping[str, AttributeValue]) -> None:
    if len(attributes) > MAX_ATTRIBUTES:
        raise invalid("MessageAttributes", len(attributes), f"At most {MAX_ATTRIBUTES} per message.")
    for name, value in attributes.items():
        if not _ATTRIBUTE.fullmatch(name) or name[0] == "." or name[-1] == "." or ".." in name:
            raise invalid("MessageAttributes.Name", name, "Letters, digits, _ - and single inner dots, at most 256.")
        if name.lower().startswith(("aws.", "amazon.")):
            raise invalid("MessageAttributes.Name", name, "Names with AWS. or Amazon. are reserved.")
        _check_value(name, value)


def _check_value(name: str, value: AttributeValue) -> None:
    kind = _TYPE.fullmatch(value.data_type)
    if kind is None or len(value.data_type) > _MAX_TYPE_LENGTH:
        raise invalid(name, value.data_type, "The type is String, Number or Binary, with or without a custom label.")
    text = value.binary_value if kind[1] == "Binary" else value.string_value
    other = value.string_value if kind[1] == "Binary" else value.binary_value
    if not text or other is not None:
        raise invalid(name, "", f"It needs a nonempty value of type {kind[1]}, and no value of another type.")
    if kind[1] == "Binary":
        _decode_base64(name, text)
    elif NOT_IN_XML.search(text) is not None:
        raise invalid(name, text, "It has characters that a message cannot have.")
    elif kind[1] == "Number" and not _NUMBER.fullmatch(text):
        raise invalid(name, text, "Can't cast the value of message (user) attribute to a number.")


def _decode_base64(name: str, text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except ValueError:
        raise invalid(name, text, "Not base64.") from None


# Digests


def md5_of(text: str | bytes) -> str:
    return md5(text.encode() if isinstance(text, str) else text, usedforsecurity=False).hexdigest()


def md5_of_attributes(attributes: Mapping[str, AttributeValue]) -> str | None:
    """Returns the MD5 digest of valid attributes as SQS defines it, or None without attributes.

    The digest covers name, type and value of each attribute, in order of names, each part preceded by its length.
    """
    if not attributes:
        return None
    parts: list[bytes] = []
    for name in sorted(attributes):
        value = attributes[name]
        binary = value.data_type.startswith("Binary")
        content = b64decode(value.binary_value or "") if binary else (value.string_value or "").encode()
        parts += [
            _prefix_length(name.encode()),
            _prefix_length(value.data_type.encode()),
            b"\x02" if binary else b"\x01",
            _prefix_length(content),
        ]
    return md5_of(b"".join(parts))


def _prefix_length(content: bytes) -> bytes:
    return pack(">I", len(content)) + content


def sequence_number(position: ids.Position) -> str:
    ticks, low = position
    return str(ticks << 64 | (low - ids.LOW_MIN))


def sent_result(message: MessageParameters, location: tuple[int, ids.Position], *, fifo: bool) -> dict[str, Any]:
    result: dict[str, Any] = {"MessageId": message_id(location), "MD5OfMessageBody": md5_of(message.message_body)}
    # Most messages have nothing else, and a batch has ten.
    if message.message_attributes:
        result["MD5OfMessageAttributes"] = md5_of_attributes(message.message_attributes)
    if message.message_system_attributes:
        result["MD5OfMessageSystemAttributes"] = md5_of_attributes(message.message_system_attributes)
    if fifo:
        result["SequenceNumber"] = sequence_number(location[1])
    return result


# Receiving


def render_received(
    delivery: ClaimDelivery, queue: Queue, region: str, now: float, system: Collection[str], names: Collection[str]
) -> dict[str, Any]:
    """Returns a received message as the answer has it, without empty fields. Bytes are shown in base64.

    A dead letter has the id that it had in its first queue. The digest of attributes covers only the requested ones.

    Args:
        system: Names of the requested system attributes.
        names: Names of the requested message attributes; one that ends with ``.*`` is a prefix.
    """
    message = delivery.message
    text = message.body if isinstance(message.body, str) else b64encode(message.body).decode()
    sqs_fields, source, location = _NO_ATTRIBUTES, "", (message.partition, (message.ticks, message.low))
    if message.meta is not None:
        sqs_fields = _sqs_attributes(message.meta)
        source, location = _find_origin(message, queue)
    fields: dict[str, Any] = {
        "MessageId": message_id(location),
        # Its part with the time of the receive limits later changes of the visibility.
        "ReceiptHandle": f"{format_receipt(delivery.receipt, queue.qid)}-{int(now):08x}",
        "MD5OfBody": md5_of(text),
    }
    if text:
        fields["Body"] = text
    if system and (
        attributes := _system_attributes(delivery, sqs_fields, queue, (source, location[1]), region, now, system)
    ):
        fields["Attributes"] = attributes
    if sqs_fields.attributes and (
        chosen := {name: value for name, value in sqs_fields.attributes.items() if _is_requested(name, names)}
    ):
        fields["MD5OfMessageAttributes"] = md5_of_attributes(chosen)
        fields["MessageAttributes"] = msgspec.to_builtins(chosen)
    return fields


def _sqs_attributes(meta: Meta) -> SqsAttributes:
    for name, value in meta.headers:
        if name == SQS_HEADER:
            try:
                return _decode(value)
            except msgspec.DecodeError:
                return _NO_ATTRIBUTES  # A caller of another protocol posted a header of this name.
    return _NO_ATTRIBUTES


def _find_origin(message: Message, queue: Queue) -> tuple[str, tuple[int, ids.Position]]:
    """Returns the queue that a message was sent to, blank if it is this one, and its partition and position there.

    A dead letter keeps the id and the time that it had in its first queue, unless its header cannot be read.
    """
    source, partition, name = deadletters.read_origin(message.meta)
    # A message that was moved back to its first queue is not a dead letter any more.
    if source and source != queue.name:
        with suppress(ValueError):
            return source, (int(partition or ""), ids.parse_id(name or ""))
    return "", (message.partition, message.position)


def _is_requested(name: str, patterns: Iterable[str]) -> bool:
    return any(
        p in _ALL_ATTRIBUTES_NAMES or p == name or (p.endswith(".*") and name.startswith(p[:-2])) for p in patterns
    )


def _system_attributes(
    delivery: ClaimDelivery,
    sqs_fields: SqsAttributes,
    queue: Queue,
    origin: tuple[str, ids.Position],
    region: str,
    now: float,
    names: Collection[str],
) -> dict[str, str]:
    """Returns the named system attributes that have a value.

    From its second delivery on, the message shows the time of sending as the time of its first delivery.
    """
    message = delivery.message
    source, (ticks, _) = origin
    sent = sqs_fields.sent or ids.ticks_to_seconds(ticks) * 1000
    key = None if message.meta is None else message.meta.key
    # The time of the first delivery is not stored.
    first = now * 1000 if delivery.deliveries == 1 else sent
    values = {
        "SenderId": queue.application,
        "SentTimestamp": str(round(sent)),
        "ApproximateReceiveCount": str(delivery.deliveries),
        "ApproximateFirstReceiveTimestamp": str(round(first)),
        "AWSTraceHeader": sqs_fields.trace and sqs_fields.trace.string_value,
        "DeadLetterQueueSourceArn": arn_of(source, region) if source else None,
        "MessageGroupId": key or sqs_fields.group,
        "MessageDeduplicationId": sqs_fields.deduplication,
        "SequenceNumber": sequence_number(message.position) if key else None,
    }
    includes_all = not _ALL_ATTRIBUTES_NAMES.isdisjoint(names)
    return {name: value for name, value in values.items() if value and (includes_all or name in names)}


class FifoDraft(NamedTuple):
    """A message to send to a FIFO queue, and the key of its post."""

    draft: Draft
    key: PostKey


def make_fifo_draft(message: MessageParameters, queue: Queue, trace: str) -> FifoDraft:
    """Checks a message to send to a FIFO queue, and returns its draft and the key that deduplicates it.

    The queue's delay applies; the key is of the queue, or of the group if the queue's scope is ``messageGroup``.

    Raises:
        SqsError: SQS does not allow the message, or it has a delay of its own or no group.
    """
    kept = stored_attributes(queue)
    group = message.message_group_id
    if group is None:
        raise missing("MessageGroupId")
    check_id("MessageGroupId", group)
    if message.delay_seconds:
        reason = "The request include parameter that is not valid for this queue type."
        raise invalid("DelaySeconds", message.delay_seconds, reason)
    deduplication = _find_deduplication_id(message, kept)
    draft = make_draft(message, kept.delay, time.time(), kept.size, trace, fifo=True, deduplication=deduplication)
    scope = group if kept.scope == "messageGroup" else ""
    return FifoDraft(draft, _make_key(scope, deduplication))


def check_fifo_batch(entries: Iterable[MessageParameters], queue: Queue) -> None:
    """Refuses a whole batch if one message lacks a group or a deduplication id, as Amazon does."""
    by_content = stored_attributes(queue).by_content
    for entry in entries:
        if entry.message_group_id is None:
            raise SqsError("InvalidParameterValue", "The request must contain the parameter MessageGroupId.")
        if entry.message_deduplication_id is None and not by_content:
            raise SqsError("InvalidParameterValue", NO_ID_TEXT)


def _find_deduplication_id(given: MessageParameters, kept: StoredAttributes) -> str:
    name = given.message_deduplication_id
    if name is None and kept.by_content:
        return sha256(given.message_body.encode()).hexdigest()
    if name is None:
        raise SqsError("InvalidParameterValue", NO_ID_TEXT)
    check_id("MessageDeduplicationId", name)
    return name


def _make_key(scope: str, deduplication: str) -> PostKey:
    """Returns the key of a post, made from scope and id alone. Callers of other protocols cannot choose it."""
    digest = sha256(f"{scope}\0{deduplication}".encode())
    return PostKey(f"\x01sqs {digest.hexdigest()}", digest.digest()[:16], DEDUP_INTERVAL)
