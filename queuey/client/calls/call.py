"""Calls and answers as plain values: decodes answers and errors, and encodes arguments.

Names and ids are checked before they become part of a path, because a mistake would address another resource: a DELETE
with an empty list of ids would delete the queue.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from math import isfinite
from threading import Lock
from typing import Any, Generic, TypeVar, overload
from urllib.parse import quote

import msgspec

from queuey.client.calls.tracing import CallSpan
from queuey.client.errors import BY_CODE, ApiError, ErrorAnswer, InvalidAnswer, InvalidArgument, error_for
from queuey.client.results import Message, Receipt, Refused
from queuey.model import ids

T = TypeVar("T")

MAX_ANSWER = 64 << 20
"""Default max bytes of an answer. A page of the service's default size fits, even if each character of its bodies is
escaped."""

Point = str | int | float | datetime | Message | Receipt | Mapping[int, str | None]
"""A position in time: an id, seconds since 1970, an aware datetime, a message, or one id per partition."""

MessageLocation = str | tuple[int, str] | Message | Receipt
"""A message: its id (in partition 1), ``partition:id``, a pair of both, or a receipt or message from a call."""

Seconds = float | timedelta
"""A length of time: a number of seconds, or a timedelta."""

JSON: Mapping[str, str] = {"content-type": "application/json"}

_TEXT_LIMIT = 500
"""Max characters kept of each text in an error answer."""

_CODES = {
    400: "InvalidParameter",
    403: "Forbidden",
    404: "NotFound",
    409: "Conflict",
    413: "TooLarge",
    422: "IdempotencyKeyReused",
}
_STATUSES = {
    "Forbidden": 403,
    "InvalidApplicationName": 404,
    "InvalidQueueName": 404,
    "QueueChanged": 503,
    "StoreBusy": 503,
    "StoreClosed": 503,
    "StoreFull": 503,
    "StoreUnavailable": 503,
}
"""HTTP status of each code, for errors that come without a status."""
_MIN_TOO_LARGE = 1e15
_SECONDS_FIELDS = {"ttl", "delay", "wait", "idle", "timeout"}
_WHOLE_NUMBER_FIELDS = {"limit", "number", "partition"}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_decoders: dict[object, msgspec.json.Decoder[Any]] = {}
_decoders_are_made = Lock()


class HttpAnswer(msgspec.Struct, frozen=True):
    """An HTTP answer. Header names are lower-case."""

    status: int
    headers: Mapping[str, str]
    content: bytes


class Call(msgspec.Struct, Generic[T], frozen=True):
    """A request to any server, with the function that decodes its answer.

    Attributes:
        method: HTTP method.
        path: Path below the application's address, or below the server's address if it begins with ``/``.
        parse: Decodes an answer with a status below 400.
        params: Query parameters in order.
        headers: Headers without the credential.
        content: The body, or None.
        repeatable: The call is idempotent, so it may be sent again after any failure.
        wait: Seconds for which the server was asked to hold the answer back.
        alone: The call is a batch of one message, so field names in an error need no message number.
        span: The trace span of the call, or None. See :mod:`queuey.client.calls.tracing`.
    """

    method: str
    path: str
    parse: Callable[[HttpAnswer], T]
    params: tuple[tuple[str, str], ...] = ()
    headers: Mapping[str, str] = {}
    content: bytes | None = None
    repeatable: bool = False
    wait: float = 0.0
    alone: bool = False
    span: CallSpan | None = None


class Timeouts(msgspec.Struct, frozen=True):
    """Timeouts of an attempt at a call, in seconds.

    Attributes:
        step: Timeout of each step: to connect, to send bytes, to receive bytes.
        total: Timeout of the attempt, until the end of the answer.
    """

    step: float
    total: float


# -- answers


def find_decoder(shape: type[T]) -> msgspec.json.Decoder[T]:
    """Returns the cached decoder of a type, which accepts a text for a number.

    It is made under a lock: msgspec crashes if two threads first use a type at once.
    """
    with _decoders_are_made:
        if shape not in _decoders:
            _decoders[shape] = msgspec.json.Decoder(shape, strict=False)
        decoder: msgspec.json.Decoder[T] = _decoders[shape]
        return decoder


def decode(answer: HttpAnswer, shape: type[T]) -> T:
    try:
        return find_decoder(shape).decode(answer.content)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidAnswer(f"the answer is not from Queuey: {error}. Check the service's address.") from error


def make_parser(shape: type[T]) -> Callable[[HttpAnswer], T]:
    return partial(decode, shape=shape)


def ignore_answer(_answer: HttpAnswer) -> None:
    pass


class _OffsetState(msgspec.Struct, frozen=True):
    offset: str | None = None
    applied: bool = False


class _ErrorBody(msgspec.Struct, frozen=True):
    error_msg: Any = None
    errors: Any = None
    code: str | None = None
    title: str = ""
    detail: str = ""
    message: str = ""
    outcome: str | None = None
    outcomes: tuple[str, ...] = ()
    partitions: dict[int, _OffsetState] = {}
    results: tuple[Refused, ...] = ()
    not_owned: tuple[int, ...] = ()


def read_error(answer: HttpAnswer, *, alone: bool = False) -> ApiError:
    """Returns the error of an answer with status 400 or above. The body may be of any kind.

    The code is the body's, else the only field's name, else that of the status. Texts are cut to 500 characters.

    Args:
        answer: The answer.
        alone: The call was a batch of one message. Field names are then returned without the message's number.
    """
    wait = read_retry_after(answer)
    try:
        body = find_decoder(_ErrorBody).decode(answer.content)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _error_from_text(answer, wait)
    fields = _field_texts(body.errors) or _field_texts(body.error_msg)
    if alone:
        fields = {name.removeprefix("0."): text for name, text in fields.items()}
    code = _cut_text(body.code or "") or _code_among(fields) or _CODES.get(answer.status, "Error")
    return error_for(
        ErrorAnswer(
            status=answer.status,
            code=code,
            fields=fields,
            text=_cut_text(body.detail or body.title or body.message),
            retry_after=wait,
            outcome=body.outcome,
            outcomes=body.outcomes,
            current={number: state.offset for number, state in body.partitions.items()},
            applied=tuple(number for number, state in body.partitions.items() if state.applied),
            refused=tuple(result for result in body.results if result.status != "ok"),
            not_owned=body.not_owned,
        )
    )


def error_from_fields(fields: Any) -> ApiError:  # noqa: ANN401 - as the server wrote it
    """Returns the error of one queue in an answer about several. The status follows from the code; 400 by default."""
    texts = _field_texts(fields)
    code = _code_among(texts) or "InvalidParameter"
    return error_for(ErrorAnswer(status=_STATUSES.get(code, 400), code=code, fields=texts))


def read_retry_after(answer: HttpAnswer) -> float | None:
    """Returns the Retry-After header in seconds, or None if it is absent or not valid.

    A date is compared with the answer's own Date header, so that the clocks need not agree.
    """
    text = answer.headers.get("retry-after", "").strip()
    if text.isascii() and text.isdigit():
        return float(text[:9])
    if not text:
        return None
    from email.utils import parsedate_to_datetime  # noqa: PLC0415 - rarely needed

    try:
        until = parsedate_to_datetime(text) - parsedate_to_datetime(answer.headers.get("date", ""))
    except (TypeError, ValueError):
        return None
    return max(0.0, until.total_seconds())


def _error_from_text(answer: HttpAnswer, wait: float | None) -> ApiError:
    text = " ".join(answer.content[: 4 * _TEXT_LIMIT].decode("utf-8", "replace").split())[:_TEXT_LIMIT]
    code = _CODES.get(answer.status, "Error")
    return error_for(ErrorAnswer(status=answer.status, code=code, text=text, retry_after=wait))


def _field_texts(value: Any) -> dict[str, str]:  # noqa: ANN401 - as the server wrote it
    if isinstance(value, dict):
        return {_cut_text(name): _cut_text(text) for name, text in value.items()}
    return {"": _cut_text(value)} if value else {}


def _cut_text(text: object) -> str:
    return str(text)[:_TEXT_LIMIT]


def _code_among(fields: dict[str, str]) -> str | None:
    """Returns the only field's name, which is the error code in Mozilla's format, or None if it cannot be a code."""
    if len(fields) != 1:
        return None
    (name,) = fields
    return name if name in BY_CODE or (name[:1].isupper() and name.isalnum() and name.isascii()) else None


# -- arguments


def encode(value: Any) -> bytes:  # noqa: ANN401 - any JSON value
    """Returns compact JSON. Raises InvalidArgument for NaN, lone surrogates and other values without a JSON form."""
    import json  # noqa: PLC0415 - most calls do not need it

    try:
        return json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArgument(f"not a JSON value: {error}") from error


def encode_value(value: Any) -> bytes:  # noqa: ANN401 - any JSON value
    """Returns compact JSON. Raises InvalidArgument if a reader would decode another value than the given one."""
    content = encode(value)
    with suppress(RecursionError):
        if is_received_as_sent(value, msgspec.json.decode(content)):
            return content
    raise InvalidArgument("not a JSON value: a key of an object is not a string, or the value is nested too deeply")


def is_received_as_sent(sent: Any, received: Any) -> bool:  # noqa: ANN401 - any values
    """Returns whether a value was received as it was sent, or as a type's conversion of it, such as a date for a text.

    False if an int or a text became an unequal float, or if a key that is not a text changed.
    """
    if sent == received:
        return True
    if isinstance(sent, dict):
        other = received if isinstance(received, dict) else sent
        same_keys = sent.keys() == other.keys() or all(isinstance(key, str) for key in sent)
        return same_keys and all(is_received_as_sent(value, other.get(key, value)) for key, value in sent.items())
    if isinstance(sent, list | tuple):
        return all(map(is_received_as_sent, sent, received if isinstance(received, list | tuple) else sent))
    if isinstance(sent, str | int | float):
        return isfinite(sent) if isinstance(sent, float) else not isinstance(received, float)
    without_equality: object = object.__eq__
    return type(sent) is type(received) and type(sent).__eq__ is without_equality


def queue_segment(name: str) -> str:
    """Returns a queue's name, quoted for a path.

    Raises InvalidArgument if it is empty, ``.`` or ``..``, has a slash, or begins with an underscore.
    """
    if check_string("queue", name) in {"", ".", ".."} or name.startswith("_") or "/" in name:
        rule = 'use at least one character, without "/", without "_" at the beginning, and not "." or ".."'
        raise InvalidArgument(f"{name!r} is not a valid queue name: {rule}")
    try:
        return quote(name, safe="")
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"{name!r} is not a valid queue name: it cannot be encoded as UTF-8") from error


def path_segment(name: str) -> str:
    try:
        return quote(name, safe="")
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"{name!r:.100} is not a valid name: it cannot be encoded as UTF-8") from error


_is_id_text = re.compile(r"[0-9a-f]{32}").fullmatch


def normalize_id(text: str) -> str:
    try:
        if _is_id_text(text):
            return text
        ids.parse_position(text)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"{text!r} is not a message id") from error
    return text.replace("-", "").lower()


def _parse_partition(number: int | str) -> int:
    try:
        value = int(number)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"{number!r} is not a partition") from error
    if value < 1:
        raise InvalidArgument(f"{value} is not a partition: partitions are numbered from 1")
    return value


def location_text(location: MessageLocation) -> str:
    """Returns ``partition:id``. An id without a partition is in partition 1. Raises InvalidArgument."""
    if isinstance(location, Message | Receipt):
        return f"{location.partition}:{normalize_id(location.id)}"
    if isinstance(location, str):
        partition, colon, identifier = location.rpartition(":")
        return f"{_parse_partition(partition) if colon else 1}:{normalize_id(identifier)}"
    try:
        number, identifier = location
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"{location!r} is not a message: use an id or a pair (partition, id)") from error
    return f"{_parse_partition(number)}:{normalize_id(identifier)}"


def _instant_text(instant: datetime) -> str:
    """Returns seconds since 1970 with six decimals. Raises InvalidArgument before 1970 and without a time zone."""
    if instant.tzinfo is None:
        raise InvalidArgument(f"{instant} has no time zone: add one, such as datetime.UTC")
    microseconds = (instant - _EPOCH) // timedelta(microseconds=1)
    if microseconds < 0:
        raise InvalidArgument(f"{instant} is before 1970, and no message is that old: use 0 for the first message")
    return f"{microseconds // 1_000_000}.{microseconds % 1_000_000:06d}"


def point_text(point: Point) -> str:
    """Returns a position in the form of the API; a text stays as it is, without a check.

    Raises:
        InvalidArgument: The value has another type, or is an instant before 1970 or without a time zone.
    """
    match point:
        case str():
            return point
        case Message() | Receipt():
            return point.id
        case bool():
            raise InvalidArgument(f"{point!r} is not a position")
        case int():
            return str(point)
        case float():
            return f"{point:.7f}"
        case datetime():
            return _instant_text(point)
        case Mapping():
            return cursor_text(point)
    raise InvalidArgument(f"{point!r} is not a position")


def cursor_text(positions: Mapping[int, str | None]) -> str:
    """Returns a cursor of one position per partition. Leaves out finished partitions, which have None."""
    return ",".join(
        f"{_parse_partition(number)}:{normalize_id(text)}" for number, text in positions.items() if text is not None
    )


def partitions_text(partitions: str | int | Iterable[int]) -> str:
    """Returns partition numbers, separated by commas. A text stays as it is, without a check."""
    if isinstance(partitions, str):
        return partitions
    if isinstance(partitions, int):
        return str(_parse_partition(partitions))
    return ",".join(str(_parse_partition(number)) for number in partitions)


def check_string(name: str, value: str) -> str:
    if not isinstance(value, str):
        raise InvalidArgument(f"{name} is {value!r:.100}: give a string")
    return value


@overload
def seconds(length: Seconds) -> float: ...
@overload
def seconds(length: None) -> None: ...
def seconds(length: Seconds | None) -> float | None:
    """Returns a timedelta in seconds, as an int if they are whole. Returns any other value unchanged."""
    if not isinstance(length, timedelta):
        return length
    total = length.total_seconds()
    return int(total) if total.is_integer() else total


def number_text(name: str, value: float) -> str:
    """Returns a number with up to 7 decimals, never with an exponent.

    Raises InvalidArgument from 1e15 on, for NaN, and if a ``limit`` or ``partition`` is not whole. Negative numbers
    pass.
    """
    text = ""
    with suppress(TypeError, ValueError, ArithmeticError):
        if abs(value) < _MIN_TOO_LARGE and not isinstance(value, bool):  # False for NaN
            # Older Pythons have no such format of a fraction, and JSON has none at all.
            fraction = not isinstance(value, int) and hasattr(value, "denominator")
            text = "" if fraction else str(value) if isinstance(value, int) else f"{value:.7f}".rstrip("0").rstrip(".")
    if not text or (name in _WHOLE_NUMBER_FIELDS and "." in text):
        kind = (
            "seconds as a number"
            if name in _SECONDS_FIELDS
            else "a whole number"
            if name in _WHOLE_NUMBER_FIELDS
            else "a number"
        )
        raise InvalidArgument(f"{name} is {value!r:.100}: give {kind}, less than {_MIN_TOO_LARGE:g}")
    return text
