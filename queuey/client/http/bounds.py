"""Bounds one attempt at a call: in seconds whatever the server does, and in bytes of its answer.

The timeouts of an HTTP library hold for one step. A server that sends a byte now and then, or one interim answer after
another, begins a new step each time, so every step here gets what is left of the whole.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from math import inf
from time import monotonic
from typing import Any

import httpx2

from queuey.client.errors import InvalidAnswer

_PIECE = 64 << 10
"""Bytes that are written in one step."""
_ANY_HEADER = zlib.MAX_WBITS | 32
"""Distinguishes gzip and zlib by the header."""

_end: ContextVar[float] = ContextVar("end", default=inf)


@contextmanager
def ends_in(seconds: float) -> Iterator[None]:
    """Lets every step on the network inside end within so many seconds from now."""
    token = _end.set(monotonic() + seconds)
    try:
        yield
    finally:
        _end.reset(token)


class Content:
    """Collects the bytes of an answer, up to a limit before and after decoding.

    Args:
        encoding: The answer's Content-Encoding.
        limit: Bytes.
    """

    def __init__(self, encoding: str, limit: int) -> None:
        self._encoding = encoding.strip().lower()
        self._limit = limit
        self._parts: list[bytes] = []
        self._size = 0

    def add(self, part: bytes) -> None:
        """Takes bytes as they came.

        Raises:
            InvalidAnswer: They are too many.
        """
        self._size += len(part)
        if self._size > self._limit:
            raise self._too_large()
        self._parts.append(part)

    def whole(self) -> bytes:
        """Returns the decoded whole.

        Raises:
            InvalidAnswer: It is too large, or its encoding is broken or another than was asked for.
        """
        data = b"".join(self._parts)
        if not data or self._encoding in {"", "identity"}:
            return data
        if self._encoding not in {"gzip", "x-gzip", "deflate"}:
            raise InvalidAnswer(f"the answer's encoding {self._encoding!r} was not asked for")
        decoder = zlib.decompressobj(_ANY_HEADER)
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


def bound(client: httpx2.Client | httpx2.AsyncClient) -> None:
    """Makes every step of a client's connections obey :func:`ends_in`, those through proxies included.

    httpx2 offers no public way to give its pools another network; a pool asks for a connection when it needs one.
    """
    kind = _Network if isinstance(client, httpx2.Client) else _AsyncNetwork
    for transport in (client._transport, *client._mounts.values()):  # noqa: SLF001
        pool = getattr(transport, "_pool", None)
        if pool is not None and not isinstance(pool._network_backend, kind):  # noqa: SLF001
            pool._network_backend = kind(pool._network_backend)  # noqa: SLF001


def _left(timeout: float | None, error: type[httpx2.TimeoutException]) -> float:
    left = _end.get() - monotonic()
    if left <= 0:
        raise error("the time for the whole call is used up")
    return left if timeout is None else min(timeout, left)


class _Around:
    """Something of httpcore2's with a few methods of our own."""

    def __init__(self, inner: Any) -> None:  # noqa: ANN401 - a stream or a network
        self._inner = inner

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever it has
        return getattr(self._inner, name)


class _Stream(_Around):
    def read(self, max_bytes: int, timeout: float | None = None) -> Any:  # noqa: ANN401 - bytes, or an awaitable of them
        return self._inner.read(max_bytes, timeout=_left(timeout, httpx2.ReadTimeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> Any:  # noqa: ANN401 - see _AsyncStream
        for piece in _pieces(buffer):
            self._inner.write(piece, timeout=_left(timeout, httpx2.WriteTimeout))

    def start_tls(self, *args: Any, timeout: float | None = None, **options: Any) -> Any:  # noqa: ANN401 - passed on
        return _Stream(self._inner.start_tls(*args, timeout=_left(timeout, httpx2.ConnectTimeout), **options))


class _AsyncStream(_Stream):
    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109 - httpcore2's
        for piece in _pieces(buffer):
            await self._inner.write(piece, timeout=_left(timeout, httpx2.WriteTimeout))

    async def start_tls(self, *args: Any, timeout: float | None = None, **options: Any) -> _Stream:  # noqa: ANN401, ASYNC109 - passed on
        left = _left(timeout, httpx2.ConnectTimeout)
        return _AsyncStream(await self._inner.start_tls(*args, timeout=left, **options))


class _Network(_Around):
    def connect_tcp(self, *args: Any, timeout: float | None = None, **options: Any) -> Any:  # noqa: ANN401 - passed on
        return _Stream(self._inner.connect_tcp(*args, timeout=_left(timeout, httpx2.ConnectTimeout), **options))


class _AsyncNetwork(_Around):
    async def connect_tcp(self, *args: Any, timeout: float | None = None, **options: Any) -> _Stream:  # noqa: ANN401, ASYNC109 - passed on
        left = _left(timeout, httpx2.ConnectTimeout)
        return _AsyncStream(await self._inner.connect_tcp(*args, timeout=left, **options))


def _pieces(buffer: bytes) -> Iterator[bytes]:
    return (buffer[start : start + _PIECE] for start in range(0, len(buffer), _PIECE))
