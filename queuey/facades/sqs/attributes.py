"""SQS attributes and tags of a queue. Some attributes are options of the queue; its field ``facade`` has the others."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from queuey.api.claims import Backlog
from queuey.facades.sqs.errors import SqsError, invalid
from queuey.model.messages import Queue, QueueSpec

ACCOUNT = "000000000000"
"""The account in URLs and ARNs. The access key decides whose queues a request means."""
DEFAULT_RETENTION = 345_600
MAX_MESSAGE = 1_048_576
"""Max bytes of a message with its attributes, and of a batch."""
MAX_VISIBILITY, MAX_WAIT, MAX_DELAY = 43_200, 20, 900
"""Max visibility timeout, wait time and delay of queues and requests, in seconds."""
NO_PERMISSIONS_TEXT = "permissions belong to access keys here: queuey app key-add --sqs --allow … --queues …"
MAX_TAGS = 50
MAX_SOURCES = 10
MAX_NAME = 80
_NAME = re.compile(r"[A-Za-z0-9_-]+")
_ARN = re.compile(r"arn:[a-z-]+:sqs:[a-z0-9-]*:[0-9]{12}:([A-Za-z0-9._-]{1,85})")


class RedriveAllowPolicy(msgspec.Struct, rename="camel", frozen=True, omit_defaults=True):
    """Which queues may use this one as their dead-letter queue."""

    redrive_permission: Literal["allowAll", "denyAll", "byQueue"]
    source_queue_arns: tuple[str, ...] = ()

    def permits(self, name: str) -> bool:
        if self.redrive_permission == "byQueue":
            return name in [queue_of_arn(arn) for arn in self.source_queue_arns]
        return self.redrive_permission == "allowAll"


class RedrivePolicy(msgspec.Struct, rename="camel"):
    """A queue's dead-letter queue, and the number of deliveries after which a message goes there."""

    dead_letter_target_arn: str
    max_receive_count: int | str = 10


class StoredAttributes(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """SQS attributes stored in a queue's field ``facade``.

    Attributes:
        visibility, delay, wait: Defaults for requests, in seconds.
        size: Max bytes of a message.
        modified: When attributes were last set, in seconds since 1970; 0 if never.
        redrive_allow: Which queues may use this one as their dead-letter queue; None allows all.
        by_content: ContentBasedDeduplication: a message without a deduplication id uses the hash of its body.
        scope: DeduplicationScope; blank if not set.
        limit: FifoThroughputLimit; blank if not set. It has no effect.
        tags: Values by key.
    """

    visibility: int = 30
    delay: int = 0
    wait: int = 0
    size: int = MAX_MESSAGE
    modified: int = 0
    redrive_allow: RedriveAllowPolicy | None = None
    by_content: bool = False
    scope: str = ""
    limit: str = ""
    tags: dict[str, str] = {}


DEFAULT_ATTRIBUTES = StoredAttributes()
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(StoredAttributes).decode


def stored_attributes(queue: Queue) -> StoredAttributes:
    return _decode_cached(queue.facade) if queue.facade else DEFAULT_ATTRIBUTES


@lru_cache(1024)
def _decode_cached(text: str) -> StoredAttributes:
    return _decode(text)


def make_spec(kept: StoredAttributes) -> QueueSpec:
    return QueueSpec(facade=_encode(kept).decode())


def is_fifo(queue: Queue) -> bool:
    return queue.traits.in_order


def check_name(name: str, *, fifo: bool) -> None:
    """Raises SqsError if SQS or this service does not allow the name for a new queue.

    A FIFO queue's name has to end with ``.fifo``, no other name may have a dot, and none begins with ``_``.
    """
    plain = name.removesuffix(".fifo") if fifo else name
    if len(name) > MAX_NAME or not _NAME.fullmatch(plain) or (fifo and plain == name):
        kind = "a FIFO queue: it ends with .fifo" if fifo else "a queue"
        raise invalid("QueueName", name, f"Can be 1 to 80 letters, digits, - and _ for {kind}.")
    if name[0] == "_":
        raise invalid("QueueName", name, "Names that begin with _ are reserved for this service.")


def arn_of(name: str, region: str) -> str:
    return f"arn:aws:sqs:{region}:{ACCOUNT}:{name}"


def queue_of_arn(arn: str) -> str:
    """Returns the queue name in an ARN; blank if the text is not the ARN of a queue."""
    match = _ARN.fullmatch(arn)
    return "" if match is None else match[1]


# Setting


class Changes(msgspec.Struct):
    """Changes to a queue that set SQS attributes.

    Attributes:
        options: New values of the queue's options.
        kept: New values of the fields of :class:`StoredAttributes`.
        clear: Options to reset; :meth:`make_update` does not contain them.
    """

    options: dict[str, Any] = {}
    kept: dict[str, Any] = {}
    clear: list[str] = []

    def make_update(self, before: StoredAttributes) -> QueueSpec:
        return replace(make_spec(replace(before, **self.kept)), **self.options)


def _read_integer(name: str, text: str, minimum: int, maximum: int) -> int:
    if not re.fullmatch("[0-9]{1,9}", text, re.ASCII) or not minimum <= int(text) <= maximum:
        raise bad_value(name, f"not {minimum} to {maximum}")
    return int(text)


_NUMBER_ATTRIBUTES = {
    "VisibilityTimeout": ("visibility", 0, MAX_VISIBILITY),
    "DelaySeconds": ("delay", 0, MAX_DELAY),
    "ReceiveMessageWaitTimeSeconds": ("wait", 0, MAX_WAIT),
    "MaximumMessageSize": ("size", 1024, MAX_MESSAGE),
}
_CHOICE_ATTRIBUTES = {
    "DeduplicationScope": ("scope", ("messageGroup", "queue")),
    "FifoThroughputLimit": ("limit", ("perQueue", "perMessageGroupId")),
}
_REFUSED_ATTRIBUTES = {
    "Policy": NO_PERMISSIONS_TEXT,
    "KmsMasterKeyId": "messages are not encrypted by the service: encrypt the disk, or the messages",
    "KmsDataKeyReusePeriodSeconds": "messages are not encrypted by the service",
}


def read_changes(given: Mapping[str, str], *, fifo: bool) -> Changes:
    """Parses the attributes to set, and sets ``modified`` to now.

    Raises:
        SqsError: An attribute does not exist, cannot have its value, or is for FIFO queues and ``fifo`` is False.
    """
    changes = Changes(kept={"modified": int(time.time())})
    for name, text in given.items():
        parse = _PARSERS.get(name) or (_FIFO_PARSERS.get(name) if fifo else None)
        if parse is None:
            raise SqsError("InvalidAttributeName", f"Unknown Attribute {name[:100]}.")
        parse(name, text, changes)
    return changes


def _read_number(name: str, text: str, changes: Changes) -> None:
    field, minimum, maximum = _NUMBER_ATTRIBUTES[name]
    changes.kept[field] = _read_integer(name, text, minimum, maximum)


def _read_retention(name: str, text: str, changes: Changes) -> None:
    changes.options["ttl"] = _read_integer(name, text, 60, 1_209_600)


def _read_redrive_allow_policy(name: str, text: str, changes: Changes) -> None:
    policy: RedriveAllowPolicy | None = _read_json(name, text, RedriveAllowPolicy) if text else None
    arns = () if policy is None else policy.source_queue_arns
    if len(arns) > MAX_SOURCES or not all(queue_of_arn(arn) for arn in arns):
        raise bad_value(name, f"sourceQueueArns must be the ARNs of at most {MAX_SOURCES} queues")
    changes.kept["redrive_allow"] = policy


def _read_choice(name: str, text: str, changes: Changes) -> None:
    field, words = _CHOICE_ATTRIBUTES[name]
    if text not in words:
        raise bad_value(name, f"it is one of {', '.join(words)}")
    changes.kept[field] = text


def _read_by_content(name: str, text: str, changes: Changes) -> None:
    changes.kept["by_content"] = _read_boolean(name, text)


def _refuse_kind_change(name: str, text: str, _changes: Changes) -> None:
    if not _read_boolean(name, text):
        raise bad_value(name, "modifying queue type is not supported")


def _ignore_valid_boolean(name: str, text: str, _changes: Changes) -> None:
    _read_boolean(name, text)


def _refuse_unless_blank(name: str, text: str, _changes: Changes) -> None:
    if text:
        raise bad_value(name, _REFUSED_ATTRIBUTES[name])


def _read_redrive(name: str, text: str, changes: Changes) -> None:
    if not text:
        changes.clear += ["dead_letter", "max_deliveries"]
        return
    policy = _read_json(name, text, RedrivePolicy)
    target = queue_of_arn(policy.dead_letter_target_arn)
    if not target:
        raise bad_value(name, "deadLetterTargetArn is not the ARN of a queue")
    changes.options["dead_letter"] = target
    changes.options["max_deliveries"] = _read_integer("maxReceiveCount", str(policy.max_receive_count), 1, 1000)


def _read_json(name: str, text: str, kind: type[Any]) -> Any:  # noqa: ANN401 - one of that kind
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise bad_value(name, str(error)) from None


def _read_boolean(name: str, text: str) -> bool:
    if text.lower() not in {"true", "false"}:
        raise bad_value(name, "it is true or false")
    return text.lower() == "true"


def bad_value(name: str, why: str) -> SqsError:
    return SqsError("InvalidAttributeValue", f"Invalid value for the parameter {name}: {why}.")


_PARSERS: dict[str, Callable[[str, str, Changes], None]] = {
    **dict.fromkeys(_NUMBER_ATTRIBUTES, _read_number),
    **dict.fromkeys(_REFUSED_ATTRIBUTES, _refuse_unless_blank),
    "MessageRetentionPeriod": _read_retention,
    "RedrivePolicy": _read_redrive,
    "RedriveAllowPolicy": _read_redrive_allow_policy,
    "SqsManagedSseEnabled": _ignore_valid_boolean,
}
_FIFO_PARSERS: dict[str, Callable[[str, str, Changes], None]] = {
    **dict.fromkeys(_CHOICE_ATTRIBUTES, _read_choice),
    "FifoQueue": _refuse_kind_change,
    "ContentBasedDeduplication": _read_by_content,
}


# Showing


_ATTRIBUTE_FORMATTERS: dict[str, Callable[[Queue, StoredAttributes, str], str | None]] = {
    "VisibilityTimeout": lambda _queue, kept, _region: str(kept.visibility),
    "MaximumMessageSize": lambda _queue, kept, _region: str(kept.size),
    "MessageRetentionPeriod": lambda queue, _kept, _region: None if queue.ttl is None else str(queue.ttl),
    "DelaySeconds": lambda _queue, kept, _region: str(kept.delay),
    "ReceiveMessageWaitTimeSeconds": lambda _queue, kept, _region: str(kept.wait),
    "CreatedTimestamp": lambda queue, _kept, _region: str(int(queue.created)),
    "LastModifiedTimestamp": lambda queue, kept, _region: str(kept.modified or int(queue.created)),
    "QueueArn": lambda queue, _kept, region: arn_of(queue.name, region),
    "SqsManagedSseEnabled": lambda _queue, _kept, _region: "false",
    "RedrivePolicy": lambda queue, _kept, region: _show_redrive(queue, region),
    "RedriveAllowPolicy": lambda _queue, kept, _region: (
        None if kept.redrive_allow is None else _encode(kept.redrive_allow).decode()
    ),
    "FifoQueue": lambda queue, _kept, _region: "true" if is_fifo(queue) else None,
    "ContentBasedDeduplication": lambda queue, kept, _region: _show_if_fifo(queue, str(kept.by_content).lower()),
    "DeduplicationScope": lambda queue, kept, _region: _show_if_fifo(queue, kept.scope or "queue"),
    "FifoThroughputLimit": lambda queue, kept, _region: _show_if_fifo(queue, kept.limit or "perQueue"),
}
COUNT_ATTRIBUTES: dict[str, Callable[[Backlog], int]] = {
    "ApproximateNumberOfMessages": lambda backlog: backlog.waiting,
    "ApproximateNumberOfMessagesNotVisible": lambda backlog: backlog.claimed + backlog.retrying,
    "ApproximateNumberOfMessagesDelayed": lambda backlog: backlog.delayed,
}
"""Attributes that are computed from the backlog."""


def _show_redrive(queue: Queue, region: str) -> str | None:
    if not queue.dead_letter or not queue.max_deliveries:
        return None
    policy = {"deadLetterTargetArn": arn_of(queue.dead_letter, region), "maxReceiveCount": queue.max_deliveries}
    return _encode(policy).decode()


def _show_if_fifo(queue: Queue, text: str) -> str | None:
    return text if is_fifo(queue) else None


def requested_attributes(names: Iterable[str]) -> list[str]:
    """Returns the requested names without repetitions, with ``All`` expanded.

    Attributes that this service refuses to set may be requested by name; they have no value.

    Raises:
        SqsError: An attribute does not exist.
    """
    requested = list(dict.fromkeys(names))
    if "All" in requested:
        return [*_ATTRIBUTE_FORMATTERS, *COUNT_ATTRIBUTES]
    for name in requested:
        if name not in _ATTRIBUTE_FORMATTERS and name not in COUNT_ATTRIBUTES and name not in _REFUSED_ATTRIBUTES:
            raise SqsError("InvalidAttributeName", f"Unknown Attribute {name[:100]}.")
    return requested


def attribute_values(queue: Queue, region: str, names: Iterable[str]) -> dict[str, str]:
    kept = stored_attributes(queue)
    values = {name: _ATTRIBUTE_FORMATTERS[name](queue, kept, region) for name in names if name in _ATTRIBUTE_FORMATTERS}
    return {name: text for name, text in values.items() if text is not None}


def find_differing_attributes(queue: Queue, given: Mapping[str, str]) -> list[str]:
    """Returns the names of given attributes whose values differ from the queue's.

    Raises:
        SqsError: A queue of this kind does not have the attribute, or not this value.
    """
    kept = stored_attributes(queue)

    def differs(name: str) -> bool:
        changes = read_changes({name: given[name]}, fifo=is_fifo(queue))
        del changes.kept["modified"]
        return (
            any(getattr(queue, field) != value for field, value in changes.options.items())
            or any(getattr(kept, field) != value for field, value in changes.kept.items())
            or (bool(changes.clear) and all(getattr(queue, field) for field in changes.clear))
        )

    return [name for name in given if differs(name)]


def with_tags(kept: StoredAttributes, tags: Mapping[str, str]) -> StoredAttributes:
    """Returns stored attributes with tags added, which replace tags with the same keys.

    Raises:
        SqsError: The queue would have too many tags, or a key or value is too long.
    """
    merged = {**kept.tags, **tags}
    if len(merged) > MAX_TAGS:
        raise invalid("Tags", len(merged), f"A queue has at most {MAX_TAGS} tags.")
    if any(not 1 <= len(key) <= 128 or len(value) > 256 for key, value in merged.items()):  # noqa: PLR2004
        raise invalid("Tags", "", "A key has 1 to 128 characters, a value at most 256.")
    return replace(kept, tags=merged)
