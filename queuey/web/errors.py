"""How errors become answers: the one table of statuses, and the two forms of error bodies."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from typing import Any

from queuey import errors
from queuey.web.responses import PROBLEM, STATUS_LINES, TEXT, Environ, Header, Response, encode, json_response

logger = logging.getLogger(__name__)

STATUSES: dict[type[Exception], int] = {
    errors.InvalidRequest: 400,
    errors.TooLarge: 413,
    errors.UnknownCoding: 415,
    errors.KeyReused: 422,
    errors.NotAuthenticated: 401,
    errors.NotAllowed: 403,
    errors.NotFound: 404,
    errors.Conflict: 409,
    errors.QueueChanged: 503,
    errors.TooManyRequests: 429,
    errors.TooManyWaiters: 503,
    errors.StoreUnavailable: 503,
    errors.StoreIncompatible: 503,
}
"""The most specific class of an error decides; whatever is not here is a defect of ours and answers 500."""

HEADERS: dict[int, tuple[Header, ...]] = {
    415: (("Accept-Encoding", "identity"),),
}
"""What goes with a status whatever the error."""

BATCH = "queuey.batch"
"""Set in the environ of a batch once its messages are known: how many there are."""

FIRST = "queuey.first"
"""Set in the environ of a request that does something before it may fail: its attribute ``in_doubt`` says whether that
may be done, so that an error has the outcome ``unknown``."""

ERROR_FORM = "queuey.error_form"
"""Set in the environ of a request to a facade: the :data:`ErrorForm` of its protocol."""

ErrorForm = Callable[[Exception, int, str], Response]
"""Makes the answer of an error, given its status here and a text for the caller, which says nothing of a defect."""

NO_SUCH_RESOURCE = "404 Not Found\n\nThe resource could not be found.\n"


class NoSuchResource(errors.NotFound):
    """No route leads here, or the resource does not have the method."""


class MethodNotAllowed(errors.QueueyError):
    """The resource does not have the method."""

    code = "MethodNotAllowed"


STATUSES[MethodNotAllowed] = 405


def status_of(error: Exception) -> int:
    """Returns the status an error answers with."""
    return next((STATUSES[cls] for cls in type(error).__mro__ if cls in STATUSES), 500)


def error_response(error: Exception, environ: Environ) -> Response:
    """Turns an error into a response, in the form that the client accepts."""
    status = status_of(error)
    form: ErrorForm | None = environ.get(ERROR_FORM)
    if status == 500:  # noqa: PLR2004 - the status of our own defects
        text = f"application error: crash id {_note_crash(error, environ)}"
        return _crashed(text, environ) if form is None else form(error, status, text)
    if form is not None:
        return form(error, status, str(error))
    extra = _extra(error, environ)
    headers = _headers(error, status)
    if _wants_problem(environ):
        return _problem(status, _code(error), _texts(error), extra, headers)
    if isinstance(error, errors.NotAllowed):
        return Response(status, f"403 Forbidden\n\n{error}\n".encode(), TEXT)
    if isinstance(error, NoSuchResource | errors.ApplicationNotFound):
        return Response(status, NO_SUCH_RESOURCE.encode(), TEXT)
    response = json_response({"status": "error", "error_msg": _texts(error), **extra}, status)
    response.headers += headers
    return response


def error_texts(error: Exception) -> dict[str, str]:
    """Returns the ``error_msg`` of an error inside a larger answer."""
    return _texts(error)


def _wants_problem(environ: Environ) -> bool:
    return "application/problem+json" in environ.get("HTTP_ACCEPT", "")


def _code(error: Exception) -> str:
    return error.code if isinstance(error, errors.QueueyError) else "Error"


def _texts(error: Exception) -> dict[str, str]:
    if isinstance(error, errors.InvalidRequest):
        return error.fields
    return {_code(error): str(error)}


def _extra(error: Exception, environ: Environ) -> dict[str, Any]:
    """Returns what an error says beyond its texts."""
    if FIRST in environ and environ[FIRST].in_doubt:
        return {"outcome": "unknown"}
    if isinstance(
        error, errors.StoreUnavailable | errors.StoreIncompatible | errors.QueueChanged | errors.TooManyRequests
    ):
        outcome = getattr(error, "outcome", "none")
        batch = environ.get(BATCH)
        # A batch is stored all or none.
        return {"outcome": outcome} | ({"outcomes": [outcome] * batch} if batch else {})
    if isinstance(error, errors.OffsetConflict):
        return {
            "partitions": {
                str(number): {"offset": offset, "applied": number in error.applied}
                for number, offset in error.current.items()
            }
        }
    if isinstance(error, errors.ClaimLost):
        return {"results": error.results}
    return {}


def _headers(error: Exception, status: int) -> tuple[Header, ...]:
    if status in {429, 503} or isinstance(error, errors.KeyInUse):
        return (("Retry-After", str(getattr(error, "retry_after", 1))),)
    if isinstance(error, errors.NotAuthenticated):
        return (("WWW-Authenticate", error.challenge),)
    return HEADERS.get(status, ())


def _problem(
    status: int, code: str, texts: dict[str, str], extra: dict[str, Any], headers: tuple[Header, ...]
) -> Response:
    content = {
        "type": "about:blank",
        "title": STATUS_LINES[status][4:],
        "status": status,
        "detail": "; ".join(f"{name}: {text}" for name, text in texts.items()),
        "code": code,
        "errors": texts,
        **extra,
    }
    return Response(status, encode(content), PROBLEM, *headers)


def _note_crash(error: Exception, environ: Environ) -> str:
    """Logs a defect under an id; the client gets only that id."""
    crash = secrets.token_hex(8)
    logger.error("crash %s: %s %r", crash, environ.get("REQUEST_METHOD"), environ.get("PATH_INFO"), exc_info=error)
    return crash


def _crashed(text: str, environ: Environ) -> Response:
    texts = {"InternalError": text}
    if _wants_problem(environ):
        return _problem(500, "InternalError", texts, {}, ())
    return json_response({"status": "error", "error_msg": texts}, 500)
