"""The Authorization header of the next request."""

from __future__ import annotations

import time
from collections.abc import Callable

from queuey.client.credentials.locks import Lock
from queuey.client.credentials.lookup import Credential
from queuey.client.credentials.tokens import KeptToken, TokenSource
from queuey.client.errors import TokenError


class AuthorizationHeader:
    """Makes the header, with a token that still lives.

    Args:
        credential: The client's credential.
        clock: Seconds since 1970.

    Attributes:
        scheme: As that of the client.
    """

    def __init__(self, credential: Credential, clock: Callable[[], float] = time.time) -> None:
        self.scheme = credential.shown
        self._fixed = credential.header
        self._source: TokenSource | None = credential.source
        self._kept = KeptToken(credential.scheme, clock)
        self._lock = Lock()

    def header(self) -> str | None:
        """Returns the header; None: the client has no credential.

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
        """Asks for another token after a 401; returns whether there is one now.

        Args:
            refused: The header that the server refused.

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
        """Asks the source, unless another caller has done so since ``seen`` answers."""
        with self._lock:
            if self._kept.answers != seen:
                return
            try:
                self._kept.keep(source.ask())
            except TokenError as error:
                self._kept.failed(error, refused=self._kept.header == refused)
