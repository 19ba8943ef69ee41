"""From the Authorization header to the caller's names."""

from __future__ import annotations

import time
from collections.abc import Callable
from hashlib import sha256

from queuey.access import owner_name
from queuey.errors import NotAuthenticated
from queuey.storage import Applications

Names = frozenset[str]

ANONYMOUS: Names = frozenset()
SCHEME = "Application "
CACHED_SECONDS = 5.0
"""How long a valid header is believed; with a store's own 5 s this keeps revocation within 10 s."""
CACHED_HEADERS = 4096
MAX_CREDENTIALS = 16
"""In one header; each unknown one costs a look into the store."""


def digest_of(key: str) -> bytes:
    """Returns what is kept of a key. Header text carries bytes as Latin-1, as WSGI has it."""
    return sha256(key.encode("latin-1", "replace")).digest()


class Authenticator:
    """Knows callers by their keys. Safe for use by many threads.

    Only valid headers are remembered, and never past the end of one of their keys: so a new key works at once, and
    an expired one ends on time.

    Args:
        applications: Has the keys.
        clock: Seconds, for how long a header has been remembered.
        most: How many headers are remembered.
    """

    __slots__ = ("_applications", "_cache", "_clock", "_most")

    def __init__(
        self, applications: Applications, *, clock: Callable[[], float] = time.monotonic, most: int = CACHED_HEADERS
    ) -> None:
        self._applications = applications
        self._clock = clock
        self._most = most
        self._cache: dict[str, tuple[Names, float, str]] = {}

    def __call__(self, header: str | None) -> Names:
        """Returns the names of whoever sent this header; none at all for no credential.

        Raises:
            NotAuthenticated: One of its keys is unknown, expired or revoked.
        """
        known = self.remembered(header)
        return self._look_up(header or "") if known is None else known

    def remembered(self, header: str | None) -> Names | None:
        """Returns the names if they are known without asking the store."""
        if header is None:
            return ANONYMOUS
        known = self._cache.get(header)
        return known[0] if known is not None and known[1] > self._clock() else None

    def seen(self, header: str) -> str | None:
        """Returns the first name as it was last known: for whom a request counts, not whether it is let in."""
        known = self._cache.get(header)
        return None if known is None else known[2]

    def _look_up(self, header: str) -> Names:
        parts = [part.strip() for part in header.split(";")]
        keys = [part.removeprefix(SCHEME).strip() for part in parts if part.startswith(SCHEME)]
        if len(keys) > MAX_CREDENTIALS:
            raise NotAuthenticated("Too many credentials")
        names = set()
        seconds = CACHED_SECONDS
        for key in keys:
            now = time.time()
            found = self._applications.find_key(digest_of(key))
            if found is None or (found.expires is not None and found.expires <= now):
                self._cache.pop(header, None)
                raise NotAuthenticated("Invalid application key")
            if found.expires is not None:
                seconds = min(seconds, found.expires - now)
            names.add(owner_name(found.application))
        if not names:
            return ANONYMOUS
        known = (frozenset(names), self._clock() + seconds, min(names))
        if len(self._cache) >= self._most:
            self._cache.clear()
        self._cache[header] = known
        return known[0]
