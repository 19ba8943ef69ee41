"""Reads refusals: Queuey's own form, RFC 9457 problems, and plain text."""

from __future__ import annotations

from typing import Any

import msgspec

from queuey.client.calls.call import HttpAnswer, decoder_of
from queuey.client.errors import BY_CODE, ApiError, ErrorAnswer, error_for
from queuey.client.results import Refused

_TEXT_LIMIT = 500
"""Max characters of each of the server's texts."""

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
"""Statuses of codes, for places where only the code is known."""


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


def read_error(answer: HttpAnswer, *, alone: bool = False) -> ApiError:
    """Returns the error of an answer of 400 or above, whatever its body is.

    Args:
        answer: The answer.
        alone: It is about a batch of one message, whose number is left out of the names of fields.
    """
    wait = retry_after(answer)
    try:
        body = decoder_of(_ErrorBody).decode(answer.content)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _plain(answer, wait)
    fields = _texts(body.errors) or _texts(body.error_msg)
    if alone:
        fields = {name.removeprefix("0."): text for name, text in fields.items()}
    code = _short(body.code or "") or _code_among(fields) or _CODES.get(answer.status, "Error")
    return error_for(
        ErrorAnswer(
            status=answer.status,
            code=code,
            fields=fields,
            text=_short(body.detail or body.title or body.message),
            retry_after=wait,
            outcome=body.outcome,
            outcomes=body.outcomes,
            current={number: state.offset for number, state in body.partitions.items()},
            applied=tuple(number for number, state in body.partitions.items() if state.applied),
            refused=tuple(result for result in body.results if result.status != "ok"),
        )
    )


def named_error(fields: Any) -> ApiError:  # noqa: ANN401 - as the server wrote it
    """Returns the error of one queue of several, of which only the texts are known."""
    texts = _texts(fields)
    code = _code_among(texts) or "InvalidParameter"
    return error_for(ErrorAnswer(status=_STATUSES.get(code, 400), code=code, fields=texts))


def retry_after(answer: HttpAnswer) -> float | None:
    """Returns the seconds of Retry-After, in either of its forms; None if it is absent or unreadable.

    A date is measured against the answer's own Date, so that the clocks need not agree.
    """
    text = answer.headers.get("retry-after", "").strip()
    if text.isascii() and text.isdigit():
        return float(text[:9])
    if not text:
        return None
    from email.utils import parsedate_to_datetime  # noqa: PLC0415 - hardly ever needed

    try:
        until = parsedate_to_datetime(text) - parsedate_to_datetime(answer.headers.get("date", ""))
    except (TypeError, ValueError):
        return None
    return max(0.0, until.total_seconds())


def _plain(answer: HttpAnswer, wait: float | None) -> ApiError:
    text = " ".join(answer.content[: 4 * _TEXT_LIMIT].decode("utf-8", "replace").split())[:_TEXT_LIMIT]
    code = _CODES.get(answer.status, "Error")
    return error_for(ErrorAnswer(status=answer.status, code=code, text=text, retry_after=wait))


def _texts(value: Any) -> dict[str, str]:  # noqa: ANN401 - as the server wrote it
    if isinstance(value, dict):
        return {_short(name): _short(text) for name, text in value.items()}
    return {"": _short(value)} if value else {}


def _short(text: object) -> str:
    return str(text)[:_TEXT_LIMIT]


def _code_among(fields: dict[str, str]) -> str | None:
    """Returns the stable code in the form of Mozilla's Queuey, where it stands in place of a field's name."""
    if len(fields) != 1:
        return None
    (name,) = fields
    return name if name in BY_CODE or (name[:1].isupper() and name.isalnum() and name.isascii()) else None
