"""Parses queries and bodies of requests as the original did, and renders messages as it did."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from queuey.facades.emodb.errors import BadArgument, BadBody, BadParameter, WrongContentType
from queuey.facades.emodb.names import ID_LENGTH, MessageIds
from queuey.messages.posts import Draft
from queuey.model.messages import Message, Meta
from queuey.runtime.limits import Limits
from queuey.web.json_values import check_value
from queuey.web.requests import Request, read_body, too_large
from queuey.web.responses import encode
from queuey.web.validators import JSON_ERRORS, BadField, show

MAX_CLAIM_SECONDS = 3600
MAX_POLLED = 1000
DEFAULT_CLAIM_SECONDS = 30
DEFAULT_LIMIT = 10
_NUMBER = re.compile(r"[+-]?[0-9]{1,10}", re.ASCII)

MAX_MESSAGE = 30_720
"""Max bytes of a message, not counting white space between its parts."""
MAX_QUEUES = 1000
MAX_COMMAS = 1_000_000
"""Max commas in a batch, which bounds the memory of many short messages."""
_JSON = Meta("application/json", json=True)
_WHITE_SPACE = b" \t\r\n"
_decode_batch = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_batches = msgspec.json.Decoder(dict[str, list[msgspec.Raw]]).decode
_decode_ids = msgspec.json.Decoder(list[str] | None).decode


def read_ttl(query: dict[str, str]) -> int:
    """Returns the time to claim messages for, in seconds; ``DEFAULT_CLAIM_SECONDS`` if it is not given.

    Raises:
        BadParameter: The value is not a number.
            BadArgument: The value is negative, or above ``MAX_CLAIM_SECONDS``. 0 is allowed, as in the original.
    """
    ttl = _read_integer(query, "ttl", DEFAULT_CLAIM_SECONDS)
    if ttl < 0:
        raise BadArgument("ClaimTtl must be >=0")
    if ttl > MAX_CLAIM_SECONDS:
        raise BadArgument("ClaimTtl must be <=1 hour")
    return ttl


def read_limit(query: dict[str, str]) -> int:
    """Returns the max number of messages, by default ``DEFAULT_LIMIT``.

    Refuses less than 1 and above ``MAX_POLLED``. Raises as :func:`read_ttl`.
    """
    limit = _read_integer(query, "limit", DEFAULT_LIMIT)
    if limit > MAX_POLLED:
        raise BadArgument(f"Limit must be <={MAX_POLLED}")
    return _check_positive(limit)


def read_count_limit(query: dict[str, str], max_count: int) -> int:
    """Returns the max number of messages to count exactly: the given one, but at most ``max_count``.

    Without one, returns ``max_count``. Refuses less than 1. Raises as :func:`read_ttl`.
    """
    return min(max_count, _check_positive(_read_integer(query, "limit", max_count)))


def check_partitioned(query: dict[str, str]) -> None:
    """Checks the parameter ``partitioned``, which has no effect: every process serves all partitions.

    Raises:
        BadParameter: The value is neither true nor false.
    """
    value = query.get("partitioned", "false")
    if value.lower() not in {"true", "false"}:
        raise BadParameter(f'"{show(value)}" must be "true" or "false".')


def _read_integer(query: dict[str, str], name: str, otherwise: int) -> int:
    value = query.get(name)
    if value is None:
        return otherwise
    if _NUMBER.fullmatch(value) is None:
        raise BadParameter(f'"{show(value)}" is not a number.')
    return int(value)


def _check_positive(limit: int) -> int:
    if limit < 1:
        raise BadArgument("Limit must be >0")
    return limit


def _read_json_body(request: Request, limits: Limits) -> bytes:
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise WrongContentType
    return read_body(request, limits.max_batch_bytes)


def _decode(decode: Any, body: bytes) -> Any:  # noqa: ANN401 - what the decoder is for
    try:
        return decode(body)
    except JSON_ERRORS as error:
        raise BadBody(f"Unable to process JSON: {error}") from None


def read_message(request: Request, limits: Limits) -> Draft:
    """Reads one message.

    Raises:
        WrongContentType: The content type is not JSON.
        BadBody: The body is not JSON.
        BadArgument: The message is too long.
    """
    return _make_draft(_read_json_body(request, limits).strip(_WHITE_SPACE), limits)


def read_batch(request: Request, limits: Limits) -> list[Draft]:
    return _make_drafts(_decode(_decode_batch, _read_batch_body(request, limits)), limits)


def read_batches(request: Request, limits: Limits) -> dict[str, list[Draft]]:
    """Reads lists of messages by the callers' names of queues, without checking the names.

    Raises BadArgument for more than :data:`MAX_QUEUES` queues, and else as :func:`read_message`.
    """
    batches = _decode(_decode_batches, _read_batch_body(request, limits))
    if len(batches) > MAX_QUEUES:
        raise BadArgument(f"{len(batches)} queues in a batch, at most {MAX_QUEUES}. Send several batches.")
    return {name: _make_drafts(messages, limits) for name, messages in batches.items()}


def _read_batch_body(request: Request, limits: Limits) -> bytes:
    """Returns a JSON body; refuses one with more than :data:`MAX_COMMAS` commas before it is decoded."""
    body = _read_json_body(request, limits)
    if body.count(b",") > MAX_COMMAS:
        raise too_large("body", MAX_COMMAS, unit="parts between commas")
    return body


def read_ids(request: Request, limits: Limits) -> list[str]:
    """Reads the ids of messages, without checking each of them.

    Raises:
        WrongContentType: The content type is not JSON.
        BadBody: The body is not a list of strings.
        BadArgument: The body is null, or too short for its number of ids.
    """
    body = _read_json_body(request, limits)
    if body.count(b",") > len(body) // ID_LENGTH:
        raise BadArgument("Invalid event ID.")  # ids this short are not valid, and their list would take much memory
    message_ids: list[str] | None = _decode(_decode_ids, body)
    if message_ids is None:
        raise BadArgument("Missing message IDs: the body is null. Send a JSON array of IDs.")
    return message_ids


def _make_drafts(messages: Iterable[msgspec.Raw], limits: Limits) -> list[Draft]:
    return [_make_draft(bytes(message), limits) for message in messages]


def _make_draft(raw: bytes, limits: Limits) -> Draft:
    """Returns the draft of a JSON value, whose text is stored unchanged, with its white space.

    Raises BadBody if it is not JSON. Refuses more than ``MAX_MESSAGE`` bytes, not counting white space between its
    parts, or ``limits.max_body`` bytes with it.
    """
    try:
        text = check_value(raw)
    except BadField as error:
        raise BadBody(f"Unable to process JSON: {error}") from None
    if len(raw) > MAX_MESSAGE and (size := len(msgspec.json.format(raw, indent=-1))) > MAX_MESSAGE:
        raise BadArgument(f"Message size ({size}) is greater than the maximum allowed ({MAX_MESSAGE}) message size")
    if len(raw) > limits.max_body:
        raise BadArgument(f"Message size with its white space ({len(raw)}) is greater than {limits.max_body}")
    return Draft(text, meta=_JSON)


def write_messages(messages: Sequence[Message], ids: MessageIds) -> list[bytes]:
    """Returns messages as a JSON array, in pieces. Text that is not JSON becomes a string, and bytes become base64."""
    pieces = [b"["]
    for number, message in enumerate(messages):
        pieces.append(
            b'%b{"id":"%b","payload":%b}'
            % (b"," if number else b"", ids.write(message).encode(), _render_payload(message))
        )
    return [*pieces, b"]"]


def _render_payload(message: Message) -> bytes:
    body = message.body
    if isinstance(body, bytes):
        return encode(b64encode(body).decode())
    if message.meta is not None and message.meta.json:
        return body.encode()
    return encode(body)
