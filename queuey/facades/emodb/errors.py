"""Errors as callers of this API know them: status, body, and the Java exception that their client raises of both.

The Java client turns four pairs of status and ``X-BV-Exception`` back into exceptions. It takes a bare answer of 500 or
more for a broken server and asks for that server's health before it sends more.
"""

from __future__ import annotations

from queuey import errors
from queuey.web.errors import STATUSES
from queuey.web.responses import JSON, Header, Response, encode, json_response

TEXT: Header = ("Content-Type", "text/plain")


def _named(exception: str) -> Header:
    return ("X-BV-Exception", exception)


ILLEGAL_ARGUMENT = _named("java.lang.IllegalArgumentException")
UNAUTHORIZED = _named("com.bazaarvoice.emodb.common.api.UnauthorizedException")
UNKNOWN_MOVE = _named("com.bazaarvoice.emodb.queue.api.UnknownMoveException")
UNAVAILABLE = _named("com.bazaarvoice.emodb.common.api.ServiceUnavailableException")


class BadArgument(errors.QueueyError):
    """An argument that has the right type and cannot be. The client raises ``IllegalArgumentException``."""

    code = "IllegalArgument"


class BadParameter(errors.QueueyError):
    code = "BadParameter"


class BadBody(errors.QueueyError):
    """A body that is no JSON, or of the wrong shape."""

    code = "BadBody"


class WrongContentType(errors.QueueyError):
    """A body that does not say that it is JSON."""

    code = "WrongContentType"

    def __str__(self) -> str:
        return "The body is not said to be JSON. Send Content-Type: application/json"


class RefusedQueue(errors.QueueyError):
    """A queue of a batch to which the caller may not send; ``args`` has its name."""

    code = "RefusedQueue"


STATUSES.update({BadArgument: 400, BadParameter: 400, BadBody: 400, WrongContentType: 415, RefusedQueue: 403})


def emodb_error(error: Exception, status: int, text: str) -> Response:
    """Turns an error into the answer that the original's callers know.

    Args:
        error: What happened.
        status: What version 1 would answer.
        text: For the caller.
    """
    if isinstance(error, BadArgument | errors.ClaimsRefused):
        return Response(400, text.encode(), TEXT, ILLEGAL_ARGUMENT)
    if isinstance(error, BadParameter):
        return Response(400, text.encode(), TEXT)
    if status in {429, 503} or isinstance(error, errors.MoveUnderWay):
        # No longer than the longest that the original says.
        seconds = min(5, max(1, getattr(error, "retry_after", 1)))
        body = encode({"message": text, "retryAfterSeconds": seconds})
        return Response(503, body, JSON, UNAVAILABLE, ("Retry-After", str(seconds)))
    return _refused(error, status, text)


def _refused(error: Exception, status: int, text: str) -> Response:
    if isinstance(error, RefusedQueue):
        return json_response({"queue": text}, 403)
    if status in {401, 403}:
        return Response(403, b'{"reason":"not authorized"}', JSON, UNAUTHORIZED)
    if isinstance(error, errors.MoveNotFound):
        # The client reads the body into its exception and takes no other field.
        return Response(404, encode({"id": error.name}), JSON, UNKNOWN_MOVE)
    return json_response({"message": text}, status)
