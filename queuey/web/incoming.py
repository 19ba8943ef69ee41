"""Requests as granian's event loop hands them over (RSGI), made into what WSGI wants: an environ with the whole body.

Where the two differ, nothing may get lost in silence:

* RSGI leaves out headers whose values are not ASCII. Where such a header would have meant something, the request is
  refused: a key that picks the partition must not be taken for none.
* RSGI does not tell the end of a chunked body from its breaking off. Either way it gives an empty piece; after an
  error it gives one more. Trailers look the same, so they are refused as well.
"""

from __future__ import annotations

import asyncio
import io
import sys
from collections.abc import Iterator
from typing import Any, Protocol

from queuey.errors import InvalidRequest, StoreUnavailable
from queuey.web.answers import NO_OWN_HEADERS, OWN_HEADER, Environ

ROOM = 256 * 1024 * 1024
"""Bytes of bodies that may be in memory at the same moment, small ones not counted."""
UNCOUNTED = 64 * 1024
"""Bytes of a body up to which it is small: the number of connections bounds these."""
ARRIVAL = 120
"""Seconds within which a body has to arrive."""

HELD = "queuey.held"
"""Set in the environ of a request whose body is counted: its bytes."""

_CONSTANT: Environ = {
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
"""What nobody asks for, but WSGI promises. The address is in the Host header."""
_MEANT = frozenset({"authorization", "content-type", "x-ttl", "x-partition", "x-message-key", "x-delay", "x-after"})
_HEADER_KEYS = {
    "content-length": "CONTENT_LENGTH",
    "content-type": "CONTENT_TYPE",
    "authorization": "HTTP_AUTHORIZATION",
    "host": "HTTP_HOST",
    "accept": "HTTP_ACCEPT",
    "accept-encoding": "HTTP_ACCEPT_ENCODING",
    "user-agent": "HTTP_USER_AGENT",
    "connection": "HTTP_CONNECTION",
    "x-ttl": "HTTP_X_TTL",
    "x-partition": "HTTP_X_PARTITION",
    "x-message-key": "HTTP_X_MESSAGE_KEY",
}


class Headers(Protocol):
    """Request headers as RSGI has them."""

    def items(self) -> list[tuple[str, str]]:
        """Returns all headers with ASCII values, lower-case names, in the order received."""

    def __iter__(self) -> Iterator[str]:
        """Iterates over the names of all headers, each once."""

    def __len__(self) -> int:
        """Returns the number of names."""


class Scope(Protocol):
    """A request without its body, as RSGI has it."""

    method: str
    path: str
    query_string: str
    scheme: str

    @property
    def headers(self) -> Headers:
        """Returns the headers, copied each time."""


def make_environ(scope: Scope) -> tuple[Environ, list[str]]:
    """Returns the WSGI environ of a request, without its body, and the names of headers that cannot be read.

    Headers whose names hold an underscore are left out: WSGI could not tell ``X_User`` from ``X-User``.
    """
    path = scope.path
    environ: Environ = {
        **_CONSTANT,
        "REQUEST_METHOD": scope.method,
        "PATH_INFO": path if path.isascii() else path.encode("utf-8", "replace").decode("latin-1"),
        "QUERY_STRING": scope.query_string,
        "wsgi.url_scheme": scope.scheme,
    }
    headers = scope.headers
    items = headers.items()
    own = again = False
    for name, value in items:
        key = _HEADER_KEYS.get(name)
        if key is None:
            if "_" in name:
                again = True
                continue
            key = "HTTP_" + name.upper().replace("-", "_")
            own = own or key.startswith(OWN_HEADER)
        if key in environ:
            again = True
            environ[key] += f",{value}"
        else:
            environ[key] = value
    if not own:
        environ[NO_OWN_HEADERS] = True
    if not again and len(items) == len(headers):
        return environ, []
    named = dict(items)
    return environ, [name for name in headers if name not in named and _is_meant(name)]


def _is_meant(name: str) -> bool:
    """Tells whether the header would change what the request does."""
    return name in _MEANT or (name.startswith("x-header-") and "_" not in name)


def unreadable(names: list[str]) -> InvalidRequest:
    """Returns the error of headers that cannot be read."""
    return InvalidRequest(dict.fromkeys(names, "Is not ASCII; a batch takes any text"))


def _announced(environ: Environ) -> int | None:
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


class Intake:
    """Takes in bodies: no longer ones than any view wants, not more at a time than fit, and none for ever.

    Used in the loop's thread alone.
    """

    def __init__(self, most: int, *, room: int = ROOM, arrival: int = ARRIVAL) -> None:
        """Prepares.

        Args:
            most: Bytes of the longest body that any view takes; longer ones are not read.
            room: Bytes of bodies that may be in memory at the same moment; the longest body fits in any case.
            arrival: Seconds within which a body has to arrive.
        """
        self._most = most
        self._room = max(room, most)
        self._arrival = arrival
        self._arriving: dict[asyncio.Task[Any], int] = {}
        self._seconds = 0

    async def take(
        self,
        environ: Environ,
        protocol: Any,  # noqa: ANN401 - granian's, compiled
        loop: asyncio.AbstractEventLoop,
    ) -> int:
        """Reads the body into the environ as far as any view may want it; returns its size.

        Afterwards, in any case, whoever calls this calls :meth:`let_go` if :data:`HELD` is in the environ.

        Raises:
            InvalidRequest: It broke off, or did not arrive in time.
            StoreUnavailable: There is no room for it now.
        """
        announced = _announced(environ)
        # A view refuses a body that is too long by its length alone, so that one is left unread.
        if announced is not None and not 0 < announced <= self._most:
            environ["wsgi.input"] = io.BytesIO()
            return announced
        task = asyncio.current_task(loop)
        if task is not None:
            self._arriving[task] = self._seconds + self._arrival
        try:
            if announced is not None and announced <= UNCOUNTED:
                body = await protocol()
            else:
                body = await self._take_pieces(environ, protocol)
        except asyncio.CancelledError:
            if task is not None:
                task.uncancel()
            raise InvalidRequest({"body": "Has not arrived in time"}) from None
        except RuntimeError as error:
            raise InvalidRequest({"body": "Broke off"}) from error
        finally:
            if task is not None:
                del self._arriving[task]
        environ["wsgi.input"] = io.BytesIO(body)
        if announced is None:
            environ["wsgi.input_terminated"] = True
        return len(body)

    async def _take_pieces(self, environ: Environ, protocol: Any) -> bytes:  # noqa: ANN401 - granian's, compiled
        """Reads a body that is long or of unknown length; ends once it is longer than any view takes."""
        pieces, size, ends = [], 0, 0
        async for piece in protocol:
            if not piece:
                ends += 1
                continue
            pieces.append(piece)
            size += len(piece)
            self._hold(environ, size)
            if size > self._most:
                break
        if ends > 1:
            raise InvalidRequest({"body": "Broke off, is malformed, or has trailers"})
        return b"".join(pieces)

    def _hold(self, environ: Environ, size: int) -> None:
        """Makes room for a body of this size.

        Raises:
            StoreUnavailable: There is none.
        """
        if size <= UNCOUNTED:
            return
        more = size - environ.get(HELD, 0)
        if more > self._room:
            raise StoreUnavailable("too many large requests at the same moment")
        self._room -= more
        environ[HELD] = size

    def let_go(self, environ: Environ) -> None:
        """Gives back the room of a request that has been handled."""
        self._room += environ.pop(HELD)

    def give_up_late(self) -> None:
        """Ends the reading of bodies that have not arrived in time. Is called every second."""
        self._seconds += 1
        for task, deadline in list(self._arriving.items()):
            if deadline > self._seconds:
                break
            task.cancel()
