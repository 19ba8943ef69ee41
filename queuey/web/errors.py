"""Turns errors into responses: the table of statuses, and the two formats of error bodies."""

from __future__ import annotations

import logging
import secrets
from functools import partial
from typing import TYPE_CHECKING, Any

from queuey.model import errors
from queuey.model.texts import printable, shorten
from queuey.web.responses import PROBLEM, STATUS_LINES, TEXT, Header, Response, accepts, encode, json_response

if TYPE_CHECKING:
    from queuey.web.requests import Request

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
"""Statuses by error class; the most specific class decides. Any other error is a defect, and answers 500."""

HEADERS_BY_STATUS: dict[int, tuple[Header, ...]] = {415: (("Accept-Encoding", "identity"),)}
"""Headers by status."""

MAX_SHOWN_PATH = 100
"""Max characters of a path in an error."""


class NoSuchResource(errors.NotFound):
    """No route matches the path, or the resource does not have the method."""

    code = "NotFound"


class MethodNotAllowed(errors.QueueyError):
    """The resource does not have the method."""


STATUSES[MethodNotAllowed] = 405


def make_path_error(path: str) -> NoSuchResource:
    """Makes the error of a path to which no resource belongs."""
    text = "Paths of the API begin with /v1/ and an application; /v1/openapi.json lists them."
    return NoSuchResource(f"{shorten(printable(path), MAX_SHOWN_PATH)} is not a resource. {text}")


def status_of(error: Exception) -> int:
    return next((STATUSES[cls] for cls in type(error).__mro__ if cls in STATUSES), 500)


def error_response(error: Exception, request: Request) -> Response:
    """Makes the response to an error, in the form of its facade or as the request accepts it.

    Without problem details, 403 is plain text, as in the original. Logs a defect with its traceback; the client gets
    only its id.
    """
    status = status_of(error)
    form = None if request.facade is None else partial(request.facade.error_response, request)
    if status == 500:  # noqa: PLR2004 - the status of our own defects
        text = f"application error: crash id {_log_crash(error, request)}"
        return _crash_response(text, request) if form is None else form(error, status, text)
    if form is not None:
        return form(error, status, str(error))
    extra = _find_extra_fields(error, request)
    headers = _make_headers(error, status)
    if _wants_problem(request):
        return _problem_response(status, _find_code(error), _find_texts(error), extra, headers)
    if isinstance(error, errors.NotAllowed):
        return Response(status, f"403 Forbidden\n\n{error}\n".encode(), TEXT)
    response = json_response({"status": "error", "error_msg": _find_texts(error), **extra}, status)
    response.headers += headers
    return response


def error_response_without_request(error: errors.QueueyError) -> Response:
    """Makes the response with problem details, because it is not known what the client accepts."""
    status = status_of(error)
    extra = {"outcome": getattr(error, "outcome", "none")}
    return _problem_response(status, error.code, _find_texts(error), extra, _make_headers(error, status))


def as_unauthenticated(error: Exception) -> Exception:
    """Turns a refusal of a caller without a credential (403) into 401; returns other errors unchanged."""
    return errors.NoCredential(*error.args) if isinstance(error, errors.NotAllowed) and error.anonymous else error


def error_texts(error: Exception) -> dict[str, str]:
    return _find_texts(error)


def _wants_problem(request: Request) -> bool:
    return accepts(request.headers.get("accept", ""), "application/problem+json")


def _find_code(error: Exception) -> str:
    return error.code if isinstance(error, errors.QueueyError) else "Error"


def _find_texts(error: Exception) -> dict[str, str]:
    if isinstance(error, errors.InvalidRequest):
        return error.fields
    return {_find_code(error): str(error)}


def _find_extra_fields(error: Exception, request: Request) -> dict[str, Any]:
    if request.in_doubt:
        return {"outcome": "unknown"}
    if isinstance(
        error, errors.StoreUnavailable | errors.StoreIncompatible | errors.QueueChanged | errors.TooManyRequests
    ):
        outcome = getattr(error, "outcome", "none")
        # A batch is stored whole or not at all.
        return {"outcome": outcome} | ({"outcomes": [outcome] * request.batch} if request.batch else {})
    if isinstance(error, errors.OffsetConflict):
        return {
            "partitions": {
                str(number): {"offset": offset, "applied": number in error.applied}
                for number, offset in error.current.items()
            }
        }
    if isinstance(error, errors.NotOwner):
        return {"not_owned": error.partitions}
    if isinstance(error, errors.ClaimLost):
        return {"results": error.results}
    return {}


def _make_headers(error: Exception, status: int) -> tuple[Header, ...]:
    """Returns Retry-After for 429, 503 and KeyInUse, the challenge for NotAuthenticated, else those of the status."""
    if status in {429, 503} or isinstance(error, errors.KeyInUse):
        return (("Retry-After", str(getattr(error, "retry_after", 1))),)
    if isinstance(error, errors.NotAuthenticated):
        return (("WWW-Authenticate", error.challenge),)
    return HEADERS_BY_STATUS.get(status, ())


def _problem_response(
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


def _without_secrets(path: str) -> str:
    for begin in ("/members/", "/login/once/"):
        path = "".join(path.partition(begin)[:2])
    return path


def _log_crash(error: Exception, request: Request) -> str:
    crash = secrets.token_hex(8)
    logger.error("crash %s: %s %r", crash, request.method, _without_secrets(request.path), exc_info=error)
    return crash


def _crash_response(text: str, request: Request) -> Response:
    texts = {"InternalError": text}
    if _wants_problem(request):
        return _problem_response(500, "InternalError", texts, {}, ())
    return json_response({"status": "error", "error_msg": texts}, 500)


def refusal_response(status: int, why: str) -> Response:
    """Makes the JSON response to a request that could not be read, or to too many connections (``Retry-After``)."""
    response = json_response({"status": "error", "error_msg": {"request": why}}, status)
    if status == 503:  # noqa: PLR2004 - there are too many connections
        response.headers += (("Retry-After", "1"),)
    return response
