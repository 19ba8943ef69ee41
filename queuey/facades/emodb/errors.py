"""Error responses of EmoDB's API: status, body, and the Java exception that the client raises.

The Java client raises exceptions for four pairs of status and ``X-BV-Exception``. After a 5xx answer without that
header it regards the server as broken, and checks its health before the next request.
"""

from __future__ import annotations

from queuey.model import errors
from queuey.web.errors import STATUSES
from queuey.web.responses import JSON, Header, Response, encode, json_response

TEXT: Header = ("Content-Type", "text/plain")


def _make_header(exception: str) -> Header:
    return ("X-BV-Exception", exception)


ILLEGAL_ARGUMENT = _make_header("java.lang.IllegalArgumentException")
UNAUTHORIZED = _make_header("com.bazaarvoice.emodb.common.api.UnauthorizedException")
UNKNOWN_MOVE = _make_header("com.bazaarvoice.emodb.queue.api.UnknownMoveException")
UNAVAILABLE = _make_header("com.bazaarvoice.emodb.common.api.ServiceUnavailableException")


class BadArgument(errors.QueueyError):
    """An argument has the right type but an invalid value. The client raises ``IllegalArgumentException``."""

    code = "IllegalArgument"


class BadParameter(errors.QueueyError):
    """A parameter of the request is missing or has the wrong type."""


class BadBody(errors.QueueyError):
    """The body is not JSON, or has the wrong shape."""


class WrongContentType(errors.QueueyError):
    """The content type of the body is not JSON."""

    def __str__(self) -> str:
        return "The content type of the body is not JSON. Send Content-Type: application/json"


class RefusedQueue(errors.QueueyError):
    """The caller may not send to a queue of the batch; ``args`` has its name."""


STATUSES.update({BadArgument: 400, BadParameter: 400, BadBody: 400, WrongContentType: 415, RefusedQueue: 403})


def emodb_error(error: Exception, status: int, text: str) -> Response:
    """Returns the original's response to an error. Refused claims are an illegal argument.

    Overload and a running move get 503 with the error's ``retry_after``, limited to 1 to 5 s.
    """
    if isinstance(error, BadArgument | errors.ClaimsRefused):
        return Response(400, text.encode(), TEXT, ILLEGAL_ARGUMENT)
    if isinstance(error, BadParameter):
        return Response(400, text.encode(), TEXT)
    if status in {429, 503} or isinstance(error, errors.MoveUnderWay):
        # The original's longest pause is 5 seconds.
        seconds = min(5, max(1, getattr(error, "retry_after", 1)))
        body = encode({"message": text, "retryAfterSeconds": seconds})
        return Response(503, body, JSON, UNAVAILABLE, ("Retry-After", str(seconds)))
    return _other_error_response(error, status, text)


def _other_error_response(error: Exception, status: int, text: str) -> Response:
    """Answers 403 without the text if rights are missing (also for 401), and with the usual status otherwise.

    A refused queue of a batch and an unknown move get bodies that only have their name.
    """
    if isinstance(error, RefusedQueue):
        return json_response({"queue": text}, 403)
    if status in {401, 403}:
        return Response(403, b'{"reason":"not authorized"}', JSON, UNAUTHORIZED)
    if isinstance(error, errors.MoveNotFound):
        # The client parses the body into its exception and accepts no other field.
        return Response(404, encode({"id": error.name}), JSON, UNKNOWN_MOVE)
    return json_response({"message": text}, status)
