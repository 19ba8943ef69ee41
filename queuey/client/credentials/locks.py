"""The locks of both clients, by the names under which the script that makes the sync client finds them."""

from __future__ import annotations

import threading
from typing import Any

Lock = threading.Lock


class AsyncLock:
    """A lock of anyio, which is loaded when the lock is first used."""

    def __init__(self) -> None:
        self._lock: Any = None

    async def __aenter__(self) -> None:
        if self._lock is None:
            import anyio  # noqa: PLC0415 - only needed with a source of tokens

            self._lock = anyio.Lock()
        await self._lock.acquire()

    async def __aexit__(self, *_: object) -> None:
        self._lock.release()
