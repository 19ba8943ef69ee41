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
"""Max bytes that are written in one step."""
_ANY_HEADER = zlib.MAX_WBITS | 32  # gzip or zlib

_end: ContextVar[float] = ContextVar("end", default=inf)


@contextmanager
def ends_in(seconds: float) -> Iterator[None]:
    """Ends every step on the network inside within ``seconds`` from now."""
    token = _end.set(monotonic() + seconds)
    try:
        yield
    finally:
        _end.reset(token)


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


def time_left(timeout: float | None, error: type[httpx2.TimeoutException]) -> float:
    left = _end.get() - monotonic()
    if left <= 0:
        raise error("the time for the whole call is used up")
    return left if timeout is None else min(timeout, left)


class Wrapper:
    """A stream or a network of httpcore2 with some methods of our own."""

    def __init__(self, inner: Any) -> None:  # noqa: ANN401 - a stream or a network
        self._inner = inner

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever it has
        return getattr(self._inner, name)


def pieces(buffer: bytes) -> Iterator[bytes]:
    return (buffer[start : start + _PIECE] for start in range(0, len(buffer), _PIECE))
