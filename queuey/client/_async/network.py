"""Connections of httpcore2 whose every step gets what is left of the time for the whole."""

from __future__ import annotations

from typing import Any

import httpx2

from queuey.client.http.bounds import Wrapper, pieces, time_left


class AsyncStream(Wrapper):
    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109 - httpcore2's
        data: bytes = await self._inner.read(max_bytes, timeout=time_left(timeout, httpx2.ReadTimeout))
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109 - httpcore2's
        for piece in pieces(buffer):
            await self._inner.write(piece, timeout=time_left(timeout, httpx2.WriteTimeout))

    async def start_tls(self, *args: Any, timeout: float | None = None, **options: Any) -> AsyncStream:  # noqa: ANN401, ASYNC109 - passed on
        left = time_left(timeout, httpx2.ConnectTimeout)
        return AsyncStream(await self._inner.start_tls(*args, timeout=left, **options))


class AsyncNetwork(Wrapper):
    async def connect_tcp(self, *args: Any, timeout: float | None = None, **options: Any) -> AsyncStream:  # noqa: ANN401, ASYNC109 - passed on
        left = time_left(timeout, httpx2.ConnectTimeout)
        return AsyncStream(await self._inner.connect_tcp(*args, timeout=left, **options))
