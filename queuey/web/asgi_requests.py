"""Requests as granian's event loop hands them over (ASGI), made into what WSGI wants: an environ with the whole body.

Headers whose values are not ASCII are left out. Where such a header would have meant something, the request is refused:
a key that picks the partition must not be taken for none. Trailers of a chunked body would be lost, so they are refused
as well.
"""

from __future__ import annotations

import asyncio
import io
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from queuey.errors import InvalidRequest
from queuey.web.responses import NO_OWN_HEADERS, OWN_HEADER, Environ
from queuey.web.scheduling import SharedQuota

Scope = dict[str, Any]
"""A request without its body, as ASGI has it."""
Receive = Callable[[], Awaitable[dict[str, Any]]]
"""Gives the next piece of the body, or says that the client is gone, as ASGI has it."""

UNCOUNTED = 16 * 1024
"""Bytes of a body up to which it is small: the number of connections bounds these."""
ARRIVAL = 120
"""Seconds within which a body has to arrive."""

HELD = "queuey.held"
"""Set in the environ of a request whose body is counted: its bytes."""

WSGI: Environ = {
    "SCRIPT_NAME": "",
    "SERVER_NAME": "queuey",
    "SERVER_PORT": "0",
    "SERVER_PROTOCOL": "HTTP/1.1",
    "wsgi.version": (1, 0),
    "wsgi.errors": sys.stderr,
    "wsgi.multithread": True,
    "wsgi.multiprocess": True,
    "wsgi.run_once": False,
}
"""What WSGI promises of every request beside its own. The address is in the Host header."""
_MEANT = frozenset(
    b"authorization content-encoding content-type x-ttl x-partition x-message-key x-delay x-after x-encoding".split()
)
_HEADER_KEYS = {
    b"content-length": "CONTENT_LENGTH",
    b"content-type": "CONTENT_TYPE",
    b"authorization": "HTTP_AUTHORIZATION",
    b"host": "HTTP_HOST",
    b"accept": "HTTP_ACCEPT",
    b"accept-encoding": "HTTP_ACCEPT_ENCODING",
    b"user-agent": "HTTP_USER_AGENT",
    b"connection": "HTTP_CONNECTION",
    b"x-ttl": "HTTP_X_TTL",
    b"x-partition": "HTTP_X_PARTITION",
    b"x-message-key": "HTTP_X_MESSAGE_KEY",
}


def make_environ(scope: Scope) -> tuple[Environ, list[str]]:
    """Returns the environ of a request, without its body, and the names of headers that cannot be read.

    :data:`WSGI` makes it complete, for a request that the WSGI application handles. Headers whose names hold an
    underscore are left out: WSGI could not tell ``X_User`` from ``X-User``. The path is left out as well:
    :func:`queuey.web.request_parsing.decode_path` may refuse it.
    """
    environ: Environ = {
        "REQUEST_METHOD": scope["method"],
        "QUERY_STRING": scope["query_string"].decode("latin-1"),
        "wsgi.url_scheme": scope["scheme"],
    }
    foreign = []
    own = False
    for name, raw in scope["headers"]:
        key = _HEADER_KEYS.get(name)
        if key is None:
            if b"_" in name:
                continue
            key = "HTTP_" + name.decode("latin-1").upper().replace("-", "_")
            own = own or key.startswith(OWN_HEADER)
        if not raw.isascii():
            if name in _MEANT or name.startswith(b"x-header-"):
                foreign.append(name.decode("latin-1"))
            continue
        value = raw.decode("ascii")
        environ[key] = f"{environ[key]},{value}" if key in environ else value
    if not own:
        environ[NO_OWN_HEADERS] = True
    return environ, foreign


def unreadable(names: list[str]) -> InvalidRequest:
    """Returns the error of headers that cannot be read."""
    return InvalidRequest(dict.fromkeys(names, "Is not ASCII; a batch takes any text"))


def announced_length(environ: Environ) -> int | None:
    """Returns the length that a body is said to have, None if it is chunked.

    Raises:
        InvalidRequest: It is encoded in some other way.
    """
    length = environ.get("CONTENT_LENGTH")
    if length is not None:
        return int(length)
    coding = environ.get("HTTP_TRANSFER_ENCODING")
    if coding is None:
        return 0
    if coding.strip().lower() != "chunked":
        raise InvalidRequest({"Transfer-Encoding": "Only chunked is understood"})
    return None


class BodyReader:
    """Takes in bodies: no longer ones than any view wants, not more at a time than fit, and none for ever.

    Used in the loop's thread alone.
    """

    def __init__(self, most: int, memory: SharedQuota, *, arrival: int = ARRIVAL) -> None:
        """Prepares.

        Args:
            most: Bytes of the longest body that any view takes; longer ones are not read.
            memory: What bodies are taken from.
            arrival: Seconds within which a body has to arrive.
        """
        self._most = most
        self._memory = memory
        self._arrival = arrival
        self._arriving: dict[asyncio.Task[Any], int] = {}
        self._seconds = 0

    async def take(self, environ: Environ, receive: Receive, loop: asyncio.AbstractEventLoop, tenant: str) -> int:
        """Reads the body into the environ as far as any view may want it; returns its size.

        Afterwards, in any case, whoever calls this gives back what :data:`HELD` in the environ says, if it is there.

        Raises:
            InvalidRequest: It broke off, or did not arrive in time.
            TooManyRequests, StoreUnavailable: There is no room for it now.
        """
        announced = announced_length(environ)
        # A view refuses a body that is too long by its length alone, so that one is left unread.
        if announced is not None and not 0 < announced <= self._most:
            environ["wsgi.input"] = io.BytesIO()
            return announced
        task = asyncio.current_task(loop)
        if task is not None:
            self._arriving[task] = self._seconds + self._arrival
        try:
            if announced is not None:
                self._hold(environ, announced, tenant)
            message = await receive()
            body: bytes | bytearray = message.get("body", b"")
            if len(body) != announced or message["type"] != "http.request":
                body = await self._take_pieces(environ, message, receive, announced, tenant)
        except asyncio.CancelledError:
            if task is not None:
                task.uncancel()
            raise InvalidRequest({"body": "Has not arrived in time"}) from None
        finally:
            if task is not None:
                del self._arriving[task]
        environ["wsgi.input"] = io.BytesIO(body)
        if announced is None:
            environ["wsgi.input_terminated"] = True
        return len(body)

    async def _take_pieces(
        self, environ: Environ, message: dict[str, Any], receive: Receive, announced: int | None, tenant: str
    ) -> bytes | bytearray:
        """Reads the rest of a body after its first message; ends once it is longer than any view takes."""
        body: bytes | bytearray = b""
        while True:
            if message["type"] != "http.request":
                raise InvalidRequest({"body": "Broke off, or is malformed"})
            piece: bytes = message["body"]
            more: bool = message["more_body"]
            if not piece and more:
                raise InvalidRequest({"body": "Has trailers"})
            if not body:
                body = piece
            elif piece:
                # Many small pieces would weigh far more in a list.
                body = body if isinstance(body, bytearray) else bytearray(body)
                body += piece
            if announced is None:
                self._hold(environ, len(body), tenant)
            if not more or len(body) > self._most or len(body) == announced:
                return body
            message = await receive()

    def _hold(self, environ: Environ, size: int, tenant: str) -> None:
        """Makes room for a body of this size.

        Raises:
            TooManyRequests, StoreUnavailable: There is none.
        """
        if size <= UNCOUNTED:
            return
        # Quota is taken in steps, so that a body in small pieces is not counted at each of them.
        held = environ.get(HELD, 0)
        if size <= held:
            return
        weight = size if held == 0 else max(size, min(2 * held, self._most))
        if not self._memory.take(tenant, weight - held):
            raise self._memory.refusal(tenant, weight - held)
        environ[HELD] = weight

    def give_up_late(self) -> None:
        """Ends the reading of bodies that have not arrived in time. Is called every second."""
        self._seconds += 1
        for task, deadline in list(self._arriving.items()):
            if deadline > self._seconds:
                break
            task.cancel()
