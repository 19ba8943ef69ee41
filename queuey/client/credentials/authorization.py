"""What a client sends in the Authorization header: one class for threads, one for async code."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from queuey.client.credentials.lookup import Credential
from queuey.client.credentials.tokens import Kept, TokenSource
from queuey.client.errors import TokenError


class AuthorizationHeader:
    """Holds the header of the next request. Safe to use from several threads.

    Args:
        credential: What the client was given.
        clock: Seconds since 1970.

    Attributes:
        scheme: See :attr:`queuey.client.Client.scheme`.
    """

    def __init__(self, credential: Credential, clock: Callable[[], float] = time.time) -> None:
        self.scheme = credential.shown
        self._fixed = credential.header
        self._source: TokenSource | None = credential.source
        self._kept = Kept(credential.scheme, clock)
        self._lock = threading.Lock()

    def header(self) -> str | None:
        """Returns the header; None: the caller has no credential.

        Raises:
            TokenError: The source gave no token.
        """
        if self._source is None:
            return self._fixed
        seen = self._kept.answers
        if self._kept.due() or self._source.changed():
            self._ask(self._source, seen)
        return self._kept.result()

    def renew(self, refused: str | None) -> bool:
        """Asks for another token, after a 401; returns whether there is one now.

        Args:
            refused: The header that was refused.

        Raises:
            TokenError: The source gave no token.
        """
        if self._source is None or refused is None:
            return False
        seen = self._kept.answers
        if self._kept.header == refused:
            self._ask(self._source, seen, refused)
        return self._kept.result() != refused

    def _ask(self, source: TokenSource, seen: int, refused: str | None = None) -> None:
        """Asks the source, unless another thread has done so since ``seen`` answers."""
        with self._lock:
            if self._kept.answers != seen:
                return
            try:
                self._kept.took(source.ask())
            except TokenError as error:
                self._kept.failed(error, refused=self._kept.header == refused)


class AsyncAuthorizationHeader:
    """:class:`AuthorizationHeader` for async code. A thread asks for tokens, because that may block."""

    def __init__(self, credential: Credential, clock: Callable[[], float] = time.time) -> None:
        self.scheme = credential.shown
        self._fixed = credential.header
        self._source: TokenSource | None = credential.source
        self._kept = Kept(credential.scheme, clock)
        self._lock: Any = None

    async def header(self) -> str | None:
        """Returns the header; see :meth:`AuthorizationHeader.header`."""
        if self._source is None:
            return self._fixed
        seen = self._kept.answers
        if self._kept.due() or self._source.changed():
            await self._ask(self._source, seen)
        return self._kept.result()

    async def renew(self, refused: str | None) -> bool:
        """Asks for another token; see :meth:`AuthorizationHeader.renew`."""
        if self._source is None or refused is None:
            return False
        seen = self._kept.answers
        if self._kept.header == refused:
            await self._ask(self._source, seen, refused)
        return self._kept.result() != refused

    async def _ask(self, source: TokenSource, seen: int, refused: str | None = None) -> None:
        import anyio  # noqa: PLC0415 - only needed with a source

        self._lock = self._lock or anyio.Lock()
        async with self._lock:
            if self._kept.answers != seen:
                return
            try:
                self._kept.took(await source.ask_async())
            except TokenError as error:
                self._kept.failed(error, refused=self._kept.header == refused)
