"""Connections of httpcore2 whose every step gets what is left of the time for the whole."""

from __future__ import annotations

from typing import Any

import httpx2

from queuey.client.http.bounds import Wrapper, pieces, time_left


class Stream(Wrapper):
    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        data: bytes = self._inner.read(max_bytes, timeout=time_left(timeout, httpx2.ReadTimeout))
        return data

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        for piece in pieces(buffer):
            self._inner.write(piece, timeout=time_left(timeout, httpx2.WriteTimeout))

    def start_tls(self, *args: Any, timeout: float | None = None, **options: Any) -> Stream:  # noqa: ANN401 - passed on
        left = time_left(timeout, httpx2.ConnectTimeout)
        return Stream(self._inner.start_tls(*args, timeout=left, **options))


class Network(Wrapper):
    def connect_tcp(self, *args: Any, timeout: float | None = None, **options: Any) -> Stream:  # noqa: ANN401 - passed on
        left = time_left(timeout, httpx2.ConnectTimeout)
        return Stream(self._inner.connect_tcp(*args, timeout=left, **options))
