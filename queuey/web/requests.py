"""Requests: taken in from granian (ASGI), and read by views: paths, queries and bodies, never more than allowed.

:func:`make_environ` and :class:`BodyReader` make what WSGI wants of a request: an environ with the whole body. Headers
whose values are not ASCII are left out. Where such a header would have meant something, the request is refused: a key
that picks the partition must not be taken for none. Trailers of a chunked body would be lost, so they are refused, too.

A path is percent-decoded once. No resource has a name with an encoded slash, which would become two names, or that is
``.`` or ``..``, which proxies and HTTP libraries take for something else: these are 404. What is encoded twice
(``%252F``) stands for the text that one decoding gives (``%2F``), which is a name like any other.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NoReturn
from urllib.parse import quote, unquote_plus, unquote_to_bytes

import msgspec

from queuey.errors import InvalidRequest, TooLarge, UnknownCoding
from queuey.web import validators
from queuey.web.errors import NoSuchResource
from queuey.web.gateway.scheduling import SharedQuota
from queuey.web.responses import NO_OWN_HEADERS, OWN_HEADER, Environ, Header

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
BODY = "queuey.body"
"""Set in the environ of a request whose body has been taken in whole: the body."""

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
    b"authorization content-encoding content-type x-ttl x-partition x-message-key x-delay x-after x-encoding "
    b"idempotency-key".split()
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
    underscore are left out: in WSGI ``X_User`` and ``X-User`` are the same. The path is left out as well:
    :func:`decode_path` may refuse it.
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
        value = raw.decode()
        environ[key] = f"{environ[key]},{value}" if key in environ else value
    if not own:
        environ[NO_OWN_HEADERS] = True
    return environ, foreign


def refuse_unreadable(names: list[str]) -> NoReturn:
    """Raises the error of headers that cannot be read."""
    raise InvalidRequest(dict.fromkeys(names, "Is not ASCII; a batch takes any text"))


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
    """Receives bodies, with limits on the length of one, on the bytes of all at a time, and on the time.

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
        """Reads the body into the environ (:data:`BODY`) unless it is longer than any view takes; returns its size.

        Afterwards, in any case, the caller releases what :data:`HELD` in the environ says, if it is there.

        Raises:
            InvalidRequest: It broke off, or did not arrive in time.
            TooManyRequests, StoreUnavailable: Not enough memory is free now.
        """
        announced = announced_length(environ)
        # A view refuses a body that is too long by its length alone, so that one is left unread.
        if announced == 0:
            environ[BODY] = b""
            return 0
        if announced is not None and announced > self._most:
            return announced
        task = asyncio.current_task(loop)
        if task is not None:
            self._arriving[task] = self._seconds + self._arrival
        try:
            if announced is not None and announced > UNCOUNTED:
                self._hold(environ, announced, tenant)
            message = await receive()
            body: bytes = message.get("body", b"")
            if len(body) != announced or message["type"] != "http.request":
                body = await self._take_pieces(environ, message, receive, announced, tenant)
        except asyncio.CancelledError:
            if task is not None:
                task.uncancel()
            raise InvalidRequest({"body": "Has not arrived in time"}) from None
        finally:
            if task is not None:
                del self._arriving[task]
        environ[BODY] = body
        if announced is None:
            environ["wsgi.input_terminated"] = True
        return len(body)

    async def _take_pieces(
        self, environ: Environ, message: dict[str, Any], receive: Receive, announced: int | None, tenant: str
    ) -> bytes:
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
            if announced is not None and not more and len(body) != announced:
                raise InvalidRequest({"body": f"Ends after {len(body)} of {announced} bytes"})
            if not more or len(body) > self._most or len(body) == announced:
                return bytes(body)
            message = await receive()

    def _hold(self, environ: Environ, size: int, tenant: str) -> None:
        """Reserves memory for a body of this size.

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


MAX_FIELDS = 200
CHUNK = 64 * 1024
_DIGITS = 18

STRICT = "strict"
"""The field of any query that has unknown fields refused."""
WARNING = "Warning"
UNKNOWN = "queuey.unknown"
"""Set in the environ of a request whose query has unknown fields: their names."""
MOST_NAMED = 10
LONGEST_NAMED = 60
"""How many unknown fields a warning names, and how much of each."""

decode_any = msgspec.json.Decoder().decode
JSON_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoding raises for text that is not JSON or goes beyond what a reader could take in."""


class BodyWanted(BaseException):
    """A view asks for a body that was not read yet; the caller is authorized. No error, so no handler catches it."""


class Unread:
    """Stands for a body that has not been taken in."""

    def read(self, _size: int = -1) -> bytes:
        """Says that it is wanted.

        Raises:
            BodyWanted: Always.
        """
        raise BodyWanted


def read_body(environ: Environ, most: int) -> bytes:
    """Reads the body, plain or chunked.

    Raises:
        TooLarge: It is longer than ``most`` bytes. The rest is left unread.
        UnknownCoding: It is compressed.
        InvalidRequest: Its length is not a number, or it ends before that.
    """
    if "HTTP_CONTENT_ENCODING" in environ:
        _check_coding(environ["HTTP_CONTENT_ENCODING"])
    taken: bytes | None = environ.get(BODY)
    if taken is not None:
        if len(taken) > most:
            raise too_large("body", most)
        return taken
    length = environ.get("CONTENT_LENGTH")
    if not length:
        chunked = environ.get("wsgi.input_terminated") or "chunked" in environ.get("HTTP_TRANSFER_ENCODING", "")
        return _read_all(environ["wsgi.input"], most) if chunked else b""
    if not (length.isascii() and length.isdigit()) or len(length) > _DIGITS:
        raise InvalidRequest({"Content-Length": f'"{length[:40]}" is not a number'})
    wanted = int(length)
    if wanted > most:
        raise too_large("body", most)
    body: bytes = environ["wsgi.input"].read(wanted)
    while len(body) < wanted:
        piece = environ["wsgi.input"].read(wanted - len(body))
        if not piece:
            raise InvalidRequest({"body": f"Ends after {len(body)} of {wanted} bytes"})
        body += piece
    return body


def _check_coding(coding: str) -> None:
    """Refuses a body that would have to be decoded: stored as it is, its readers would not know that it is compressed.

    Raises:
        UnknownCoding: It is compressed.
    """
    if not {name.strip().lower() for name in coding.split(",")} <= {"", "identity"}:
        raise UnknownCoding(coding)


def _read_all(source: Any, most: int) -> bytes:  # noqa: ANN401 - whatever the server gives
    pieces = []
    size = 0
    while piece := source.read(min(CHUNK, most + 1 - size)):
        size += len(piece)
        if size > most:
            raise too_large("body", most)
        pieces.append(piece)
    return b"".join(pieces)


def too_large(field: str, most: int, *, unit: str = "bytes") -> TooLarge:
    """Returns the error of something longer than allowed."""
    return TooLarge({field: f"Longer than maximum length {most} {unit}"})


def bad_json(why: object) -> InvalidRequest:
    """Returns the error of a body that is not the JSON it should be, in the original's words and with the reason."""
    return InvalidRequest({"InvalidParameter": f"Unable to properly deserialize JSON body. {why}."})


def parse_form(text: str, what: str) -> dict[str, str]:
    """Reads ``a=1&b=2``; of a name given twice the last one counts.

    Raises:
        InvalidRequest: It is not percent-encoded UTF-8, or has too many fields.
    """
    if not text:
        return {}
    pairs = text.split("&")
    if len(pairs) > MAX_FIELDS:
        raise InvalidRequest({what: f"More than {MAX_FIELDS} fields"})
    found = {}
    quoted = "%" in text or "+" in text or not text.isascii()
    for pair in pairs:
        name, _, value = pair.partition("=")
        if quoted:
            try:
                name, value = _unquote(name), _unquote(value)
            except UnicodeError:
                raise InvalidRequest({what: "Not percent-encoded UTF-8"}) from None
        if name:
            found[name] = value
    return found


def read_query(environ: Environ, known: frozenset[str] = frozenset()) -> dict[str, str]:
    """Reads the fields of the query. Unknown fields are ignored, and noted for a warning.

    Args:
        environ: The request.
        known: The names of the fields that mean something.

    Raises:
        InvalidRequest: The query is malformed, or names an unknown field and asks for ``strict``.
    """
    given = parse_form(environ.get("QUERY_STRING", ""), "query")
    if not known.issuperset(given):
        _note_unknown(environ, given, known)
    return given


def _note_unknown(environ: Environ, given: dict[str, str], known: frozenset[str]) -> None:
    unknown = [name for name in given if name not in known and name != STRICT]
    if unknown and validators.boolean(given.get(STRICT, "")):
        others = f"The fields are: {', '.join(sorted(known))}." if known else "There are none."
        raise InvalidRequest(dict.fromkeys(map(validators.show, unknown), f"No field of this query. {others}"))
    if unknown:
        environ[UNKNOWN] = unknown


def with_warning(headers: Sequence[Header], unknown: list[str]) -> tuple[Header, ...]:
    """Returns headers with a warning that names fields which were ignored, a few of them, percent-encoded.

    It stands behind a warning that is there already, in the same header: many clients keep one of each name.
    """
    names = ", ".join(quote(name, safe="")[:LONGEST_NAMED] for name in unknown[:MOST_NAMED])
    more = f" and {len(unknown) - MOST_NAMED} more" if len(unknown) > MOST_NAMED else ""
    text = f'299 - "Ignored, as they are no fields of this query: {names}{more}"'
    before = [value for name, value in headers if name == WARNING]
    return (*(header for header in headers if header[0] != WARNING), (WARNING, ", ".join([*before, text])))


def _unquote(text: str) -> str:
    """Decodes one name or value. Servers pass raw bytes of a query as Latin-1, so these are read as UTF-8 too."""
    if not text.isascii():
        text = text.encode("latin-1").decode("utf-8")
    return unquote_plus(text, errors="strict")


def read_fields(environ: Environ, most: int) -> dict[str, Any]:
    """Reads the fields of a form or of a JSON object, by the Content-Type.

    Raises:
        InvalidRequest: It is neither, or broken.
    """
    body = read_body(environ, most)
    if not body:
        return {}
    kind = environ.get("CONTENT_TYPE", "").partition(";")[0].strip().lower()
    if kind == "application/json":
        return read_object(body)
    if kind not in {"", "application/x-www-form-urlencoded"}:
        raise InvalidRequest({"Content-Type": f'"{kind[:100]}" is neither a form nor application/json'})
    return dict(parse_form(body.decode("latin-1"), "body"))


def read_object(body: bytes) -> dict[str, Any]:
    """Reads a JSON object.

    Raises:
        InvalidRequest: It is none.
    """
    try:
        found = decode_any(body)
    except JSON_ERRORS as error:
        raise bad_json(error) from None
    if not isinstance(found, dict):
        raise bad_json("It is no object")
    return found


RAW = ("RAW_URI", "REQUEST_URI")
"""Where WSGI servers hand over the path as it was sent. PEP 3333 knows only the decoded one."""
_DOTS = frozenset({".", ".."})


def decode_path(raw: bytes) -> str:
    """Decodes the path of a request as it was sent; returns it as WSGI has it, bytes as Latin-1.

    Raises:
        NoSuchResource: A name holds a slash, or is ``.`` or ``..``.
    """
    if b"%" in raw:
        _refuse_slash(raw.decode("latin-1"))
        raw = unquote_to_bytes(raw)
    path = raw.decode("latin-1")
    if "." in path:
        _refuse_dots(path)
    return path


def check_path(environ: Environ) -> None:
    """Does the same for a request whose path a WSGI server has decoded, as far as the server reports it.

    Raises:
        NoSuchResource: A name holds a slash, or is ``.`` or ``..``.
    """
    for name in RAW:
        if name in environ:
            _refuse_slash(environ[name].partition("?")[0])
    _refuse_dots(environ["PATH_INFO"])


def _refuse_slash(path: str) -> None:
    if "%2f" in path.lower():
        raise NoSuchResource("A name holds an encoded slash.")


def _refuse_dots(path: str) -> None:
    if not _DOTS.isdisjoint(path.split("/")):
        raise NoSuchResource("No resource is named . or ..")
