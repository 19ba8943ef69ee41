"""The use of httpcore2 by both clients: connections, requests and answers. Its errors are translated here.

An attempt at a call has a time limit and a limit of bytes, whatever the server sends. httpcore2's timeouts are for one
step. A server that slowly sends single bytes, or many interim answers, starts a new step each time. Every step here is
therefore limited to the remaining time of the whole call.
"""

from __future__ import annotations

import os
import ssl
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from importlib.util import find_spec
from ipaddress import ip_address, ip_network
from math import inf
from pathlib import Path
from threading import Lock
from time import monotonic
from typing import Any, NamedTuple, Protocol
from urllib.parse import quote, unquote, urlencode, urlsplit

import httpcore2

import queuey
from queuey.client.calls.call import Call, Timeouts
from queuey.client.errors import (
    AnswerTimeout,
    ConnectionFailed,
    ConnectionLost,
    ConnectTimeout,
    InvalidAnswer,
    InvalidArgument,
    Timeout,
    TransportError,
)
from queuey.client.forks import register_forkable
from queuey.client.http.servers import Server

# -- connections

MAX_CONNECTIONS = 500
"""Max connections of a client. Many systems allow a process only 1,024 open files."""
KEEPALIVE_SECONDS = 5.0
"""Max seconds for which an idle connection stays open."""
_PROXY_VARIABLES = frozenset({"all_proxy", "http_proxy", "https_proxy"})
_PROXY_SCHEMES = frozenset({"http", "https", "socks5", "socks5h"})
_PATH_CHARACTERS = "/%:@!$&'()*+,;=~"
"""Characters that are not quoted in a path, besides letters and digits."""
_inherited_endpoints: list[list[ServerEndpoint]] = []
"""Endpoints of a parent process. They are kept, because dropping them would close the parent's connections."""


class MakePool(Protocol):
    """Makes a pool such as ``httpcore2.ConnectionPool``, with a network backend that obeys :func:`limit_total_time`."""

    def __call__(self, **options: Any) -> Any:  # noqa: ANN401 - httpcore2's options
        ...


class ServerEndpoint(NamedTuple):
    """The connections and the address of one server.

    Attributes:
        pool: The connection pool. Servers with the same proxy, or without one, share it.
        scheme, host, port: Address of the server. Without a port, the scheme's default port.
        root, base: Quoted paths of the server and of the application.
        headers: Default headers of all requests. Names are lower-case.
    """

    pool: Any
    scheme: bytes
    host: bytes
    port: int | None
    root: str
    base: str
    headers: dict[bytes, bytes]


class Connections:
    """The connections of a client. A forked child process opens its own.

    Args:
        servers: The servers of the client.
        verify: False does not check certificates; a path names the authorities to check against; or an SSL context.
        make: Makes a pool.
        pool: A pool to use instead of the network, or None.

    Raises:
        InvalidArgument: An address, the certificates or the environment's proxy are not valid.
    """

    def __init__(
        self,
        servers: tuple[Server, ...],
        verify: bool | str | Path | ssl.SSLContext,  # noqa: FBT001 - passed on
        make: MakePool,
        pool: Any | None,  # noqa: ANN401 - an httpcore2 pool
    ) -> None:
        self.is_closed = False
        self._servers = servers
        self._make = partial(_make_endpoints, servers, verify, make, pool)
        self._endpoints = self._make()
        self._is_forked = False
        self._lock = Lock()
        register_forkable(self)

    def begin_in_child(self) -> None:
        self._is_forked = True
        self._lock = Lock()

    def endpoint_of(self, server: Server) -> ServerEndpoint:
        """Returns the endpoint of a server. In a forked child, the first call makes new endpoints for all servers."""
        if self._is_forked:
            with self._lock:
                if self._is_forked:
                    _inherited_endpoints.append(self._endpoints)
                    self._endpoints = self._make()
                    self._is_forked = False
        return self._endpoints[self._servers.index(server)]

    def close(self) -> list[Any]:
        """Refuses further calls. Returns the pools that the caller must close: none of a parent process."""
        self.is_closed = True
        return [] if self._is_forked else list({id(e.pool): e.pool for e in self._endpoints}.values())


def _make_endpoints(
    servers: tuple[Server, ...],
    verify: bool | str | Path | ssl.SSLContext,  # noqa: FBT001 - passed on
    make: MakePool,
    pool: Any | None,  # noqa: ANN401 - an httpcore2 pool
) -> list[ServerEndpoint]:
    """Returns endpoints in the order of the servers. A server on this machine never uses a proxy."""
    # Enough connections that renewals of claims do not wait for long polls.
    limits = {"max_connections": MAX_CONNECTIONS, "max_keepalive_connections": MAX_CONNECTIONS}
    context = _make_context(servers, verify) if pool is None else None
    pools: dict[str | None, Any] = {}
    endpoints = []
    for server in servers:
        # Never use a proxy for a server on this machine.
        url = None if server.local or pool is not None else _find_proxy(server)
        if url not in pools:
            proxy = None if url is None else _make_proxy(url)
            pools[url] = pool or make(ssl_context=context, proxy=proxy, keepalive_expiry=KEEPALIVE_SECONDS, **limits)
        endpoints.append(_make_endpoint(server, pools[url]))
    return endpoints


def _make_endpoint(server: Server, pool: Any) -> ServerEndpoint:  # noqa: ANN401 - an httpcore2 pool
    parts = urlsplit(server.root)
    try:
        host = _encode_host(parts.hostname or "")
    except UnicodeError as error:
        raise InvalidArgument(f"{server.root!r} is not the address of a server: {error}") from error
    authority = b"[%b]" % host if b":" in host else host
    if server.origin != f"{parts.scheme}://{parts.hostname}:{_DEFAULT_PORTS[parts.scheme]}":
        authority += b":%d" % (parts.port or 0)
    headers = {
        b"host": authority,
        b"user-agent": f"queuey-client/{queuey.__version__}".encode(),
        b"accept": b"application/json, application/problem+json",
        b"accept-encoding": b"gzip",
    }
    root = quote(parts.path, safe=_PATH_CHARACTERS)
    base = root + server.base.removeprefix(server.root)
    return ServerEndpoint(pool, parts.scheme.encode(), host, parts.port, root, base, headers)


_DEFAULT_PORTS = {"http": 80, "https": 443}


def _encode_host(host: str) -> bytes:
    if host.isascii():
        return host.encode("idna")  # checks its labels
    import idna  # noqa: PLC0415 - rarely needed

    # The codec "idna" implements IDNA 2003, which turns faß.de into fass.de, the host of another owner.
    return idna.encode(host)


def _find_proxy(server: Server) -> str | None:
    """Returns the URL of the environment's proxy for a server, by default with ``http://``.

    Returns None if no proxy is set for the server's scheme or for all, or if NO_PROXY excludes the server.
    """
    from urllib.request import getproxies, proxy_bypass  # noqa: PLC0415 - a slow import that is rarely needed

    parts = urlsplit(server.root)
    proxies = getproxies()
    address = proxies.get(parts.scheme) or proxies.get("all")
    if not address or proxy_bypass(parts.netloc) or _is_excepted(parts.hostname or "", proxies.get("no", "")):
        return None
    return address if "://" in address else f"http://{address}"


def _is_excepted(host: str, exceptions: str) -> bool:
    """Returns whether NO_PROXY excludes a host by a form that the standard library does not support.

    These forms are ``*`` in a list, ``*.name``, an IPv6 address, and a network such as ``10.0.0.0/8``.
    """
    names = [name.strip().lower() for name in exceptions.split(",")]
    try:
        address = ip_address(host)
    except ValueError:
        return "*" in names or any(name[:2] == "*." and host.endswith(name[1:]) for name in names)
    for name in names:
        with suppress(ValueError):
            if name == "*" or address in ip_network(name.strip("[]"), strict=False):
                return True
    return False


def _make_proxy(address: str) -> httpcore2.Proxy:
    """Returns the proxy at an address, which may contain a user and a password.

    Raises:
        InvalidArgument: The address is not valid, or a SOCKS proxy needs a package that is not installed.
    """
    error: object
    try:
        parts = urlsplit(address)
        url = httpcore2.URL(scheme=parts.scheme, host=_encode_host(parts.hostname or ""), port=parts.port, target="/")
        user, password = (unquote(text or "").encode() for text in (parts.username, parts.password))
    except ValueError as failure:
        error = failure
    else:
        if parts.scheme not in _PROXY_SCHEMES or not url.host:
            error = f"unknown scheme for proxy URL {parts.scheme}://{parts.hostname or ''}"
        elif parts.scheme.startswith("socks") and find_spec("socksio") is None:
            error = "the package socksio is not installed"
        else:
            return httpcore2.Proxy(url, auth=(user, password) if user or password else None)
    names = sorted(name for name in os.environ if name.lower() in _PROXY_VARIABLES and os.environ[name])
    text = f"the proxy of the environment cannot be used ({', '.join(names)}): {error}"
    raise InvalidArgument(f"{text}. Set the address of a proxy that begins with http://, or unset it")


def _make_context(
    servers: tuple[Server, ...],
    verify: bool | str | Path | ssl.SSLContext,  # noqa: FBT001 - passed on
) -> ssl.SSLContext:
    """Returns the context for ``verify``. For local http servers only, it loads no authorities and trusts none.

    Raises InvalidArgument if certificates cannot be loaded.
    """
    if isinstance(verify, ssl.SSLContext):
        return verify
    if isinstance(verify, str | Path):
        try:
            path = Path(verify)
            if path.is_dir():
                return ssl.create_default_context(capath=path)
            return ssl.create_default_context(cafile=path)
        except OSError as error:
            raise InvalidArgument(f"the certificates {str(verify)!r} cannot be loaded: {error}") from error
    if verify is not False and not all(server.local and server.root.startswith("http://") for server in servers):
        try:
            return httpcore2.default_ssl_context()
        except OSError as error:
            named = os.environ.get("SSL_CERT_FILE")
            raise InvalidArgument(f"the certificates {named!r} of SSL_CERT_FILE cannot be loaded: {error}") from error
    # No connection uses TLS with certificate checks, so the slow load of the authorities is skipped. Unless verify is
    # False, this context would trust no server.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if verify is False:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


# -- requests, answers, and errors of httpcore2

CONNECT_TIMEOUT = 5.0
"""Max seconds to connect, so that another server is tried soon."""
_LIBRARIES = frozenset({"httpcore2", "httpx2"})
"""Libraries whose errors are translated. httpx2, of a transport passed by the caller, uses the same class names."""

# With no free connection in the pool, or a refusal by the proxy, nothing was sent either.
_ERRORS_BY_NAME: dict[str, type[TransportError]] = {
    "ConnectTimeout": ConnectTimeout,
    "PoolTimeout": ConnectTimeout,
    "TimeoutException": AnswerTimeout,
    "ConnectError": ConnectionFailed,
    "ProxyError": ConnectionFailed,
}

_ERROR_TEXTS = {
    ConnectTimeout: "no connection in time",
    AnswerTimeout: "no answer in time",
    ConnectionFailed: "no connection",
    ConnectionLost: "the connection broke",
}
_METHODS_WITH_LENGTH = frozenset({"POST", "PUT", "PATCH"})


def make_request(
    endpoint: ServerEndpoint, call: Call[Any], times: Timeouts, authorization: str | None
) -> httpcore2.Request:
    target = quote((endpoint.root if call.path.startswith("/") else endpoint.base) + call.path, safe=_PATH_CHARACTERS)
    if call.params:
        target = f"{target}?{urlencode(call.params, quote_via=quote, safe='')}"
    headers = dict(endpoint.headers)
    for name, value in call.headers.items():
        headers[name.lower().encode()] = value.encode()
    if authorization is not None:
        headers[b"authorization"] = authorization.encode()
    if call.content is not None or call.method in _METHODS_WITH_LENGTH:
        headers[b"content-length"] = b"%d" % len(call.content or b"")
    timeouts = dict.fromkeys(("read", "write", "pool"), times.step) | {"connect": min(times.step, CONNECT_TIMEOUT)}
    url = httpcore2.URL(scheme=endpoint.scheme, host=endpoint.host, port=endpoint.port, target=target)
    extensions = {"timeout": timeouts}
    return httpcore2.Request(
        call.method, url, headers=list(headers.items()), content=call.content, extensions=extensions
    )


def headers_of(response: httpcore2.Response) -> dict[str, str]:
    joined: dict[str, str] = {}
    for name, value in response.headers:
        try:
            text = value.decode()
        except UnicodeDecodeError:
            text = value.decode("latin-1")
        key = name.decode("latin-1").lower()
        joined[key] = f"{joined[key]}, {text}" if key in joined else text
    return joined


@contextmanager
def translate_errors(server: Server, *, closed: bool) -> Iterator[None]:
    """Translates errors of httpcore2 and httpx2 that the block raises to errors of the client. Others pass unchanged.

    Raises InvalidArgument for text that cannot be encoded, and at once if ``closed``.
    """
    if closed:
        raise InvalidArgument("the client is closed")
    try:
        yield
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"{error.object!r:.100} cannot be encoded as UTF-8") from error
    except Exception as error:
        kinds = type(error).__mro__
        if _LIBRARIES.isdisjoint(kind.__module__.partition(".")[0] for kind in kinds):
            raise
        kind = next((_ERRORS_BY_NAME[k.__name__] for k in kinds if k.__name__ in _ERRORS_BY_NAME), ConnectionLost)
        detail = "" if issubclass(kind, Timeout) or not str(error) else f" ({error})"
        hint = ". Start the service: queuey serve" if server.local and kind is ConnectionFailed else ""
        if "SSL" in detail:
            hint = "" if "CERTIFICATE" in detail else ". Without TLS, the address of the server begins with http://"
        raise kind(_ERROR_TEXTS[kind] + detail + hint, server.root) from error


# -- transports passed by the caller


def is_pool(transport: Any) -> bool:  # noqa: ANN401 - an httpcore2 pool or an httpx2 transport
    return any(kind.__module__.partition(".")[0] == "httpcore2" for kind in type(transport).__mro__)


def make_httpx_request(request: httpcore2.Request) -> Any:  # noqa: ANN401 - httpx2's
    import httpx2  # noqa: PLC0415 - only needed with an httpx2 transport

    url = request.url
    host = b"[%b]" % url.host if b":" in url.host else url.host
    port = "" if url.port is None else f":{url.port}"
    full_url = httpx2.URL(f"{url.scheme.decode()}://{host.decode()}{port}").copy_with(raw_path=url.target)
    stream: Any = request.stream
    content = b"".join(stream) if isinstance(stream, Iterable) else None
    return httpx2.Request(
        request.method.decode(), full_url, headers=request.headers, content=content, extensions=request.extensions
    )


# -- limits of time and size

_MAX_PIECE_BYTES = 64 << 10
"""Max bytes written in one step."""
_GZIP_OR_ZLIB_BITS = zlib.MAX_WBITS | 32  # gzip or zlib

_TIMEOUT_TEXT = "the time for the whole call is used up"
_call_end: ContextVar[float] = ContextVar("end", default=inf)
"""Monotonic time at which the call must end. Only :func:`time_left` and :meth:`Content.add` check it."""


@contextmanager
def limit_total_time(seconds: float) -> Iterator[None]:
    token = _call_end.set(monotonic() + seconds)
    try:
        yield
    finally:
        _call_end.reset(token)


class Content:
    """Collects the bytes of an answer, up to a limit before and after decoding.

    Args:
        encoding: The answer's Content-Encoding.
        limit: Max bytes.
    """

    def __init__(self, encoding: str, limit: int) -> None:
        self._encoding = encoding.strip().lower()
        self._limit = limit
        self._parts: list[bytes] = []
        self._size = 0

    def add(self, part: bytes) -> None:
        """Appends bytes.

        Raises:
            InvalidAnswer: The answer is too large.
            ReadTimeout: The time of the whole call is over. A transport passed by the caller does not check this.
        """
        if _call_end.get() < monotonic():
            raise httpcore2.ReadTimeout(_TIMEOUT_TEXT)
        self._size += len(part)
        if self._size > self._limit:
            raise self._too_large()
        self._parts.append(part)

    def whole(self) -> bytes:
        """Returns the decoded content.

        Raises:
            InvalidAnswer: The content is too large, or its encoding is broken or was not requested.
        """
        data = b"".join(self._parts)
        if not data or self._encoding in {"", "identity"}:
            return data
        if self._encoding not in {"gzip", "x-gzip", "deflate"}:
            raise InvalidAnswer(f"the answer's encoding {self._encoding!r} was not requested")
        decoder = zlib.decompressobj(_GZIP_OR_ZLIB_BITS)
        try:
            data = decoder.decompress(data, self._limit + 1)
        except zlib.error as error:
            raise InvalidAnswer(f"the answer's encoding is broken: {error}") from error
        if len(data) > self._limit:
            raise self._too_large()
        if not decoder.eof:
            raise InvalidAnswer("the answer's encoding is broken: it ends too early")
        return data

    def _too_large(self) -> InvalidAnswer:
        return InvalidAnswer(
            f"the answer is larger than {self._limit:,} bytes. Ask for less (limit=) or allow more (max_answer=)"
        )


def time_left(timeout: float | None, error: type[httpcore2.TimeoutException]) -> float:
    """Returns the seconds left of :func:`limit_total_time`, at most ``timeout``. Raises ``error`` if none are left."""
    remaining = _call_end.get() - monotonic()
    if remaining <= 0:
        raise error(_TIMEOUT_TEXT)
    return remaining if timeout is None else min(timeout, remaining)


class Wrapper:
    """Delegates to an httpcore2 stream or network backend. Subclasses override methods."""

    def __init__(self, inner: Any) -> None:  # noqa: ANN401 - a stream or a network
        self._inner = inner

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - any attribute
        return getattr(self._inner, name)


def pieces(buffer: bytes) -> Iterator[bytes]:
    return (buffer[start : start + _MAX_PIECE_BYTES] for start in range(0, len(buffer), _MAX_PIECE_BYTES))
