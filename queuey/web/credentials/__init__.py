"""From the Authorization header to the caller: credentials, each of a scheme, each read by a reader.

A header has one or more credentials, separated by semicolons: ``Application KEY; Bearer TOKEN``. The caller has what
all of them give together; one that is not valid spoils the rest, and one of a scheme without a reader is ignored.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from hashlib import sha256
from typing import Protocol

import msgspec

from queuey.access import ANYBODY, Caller, Grant
from queuey.errors import NotAuthenticated

REMEMBERED = 4096
"""Headers that are remembered."""
SHORT = 128
"""Characters of a header that is remembered as it is, which takes no time; application keys have 64."""
MAX_CREDENTIALS = 16
"""In one header; each unknown one costs a look into the store, or a check of a signature."""
MAX_PARTS = 128
"""Of one header, those of other schemes and blank ones included: they are taken apart on the event loop."""
_SPELLED = {"bearer": "Bearer", "browserid": "BrowserID"}
"""Users' schemes, whose capitals do not count (RFC 9110, 11.1). Those of ``Application`` do, as in the original."""


class Identity(msgspec.Struct, frozen=True):
    """What one credential gives its holder.

    Attributes:
        names: See :class:`~queuey.access.Caller`.
        grants: See there.
        tenant: See there.
        expires: Seconds since 1970 when the credential ends; None: it has no end.
    """

    names: frozenset[str]
    grants: tuple[Grant, ...]
    tenant: str
    expires: float | None = None


class Reader(Protocol):
    """Reads the credentials of one scheme. It is used by many threads.

    Attributes:
        scheme: The word before the credential, in the letters that are expected: ``Application``.
        believed: Seconds for which what was read may be believed without reading the credential again.
    """

    scheme: str
    believed: float

    def read(self, credential: str, now: float) -> Identity:
        """Reads a credential. It may block, with a bound of its own: it is never called on the event loop.

        It need not look at when the credential ends, only say so.

        Args:
            credential: What follows the scheme, without blanks around it. Not blank; bytes are Latin-1, as WSGI has
                them.
            now: Seconds since 1970.

        Raises:
            NotAuthenticated: It is not valid; the message is shown to the caller.
            StoreUnavailable: It cannot be read now.
        """


class Authenticator:
    """Knows callers by their credentials. Safe for use by many threads.

    Only headers with valid credentials are remembered, and never past the end of one of them: so a new credential works
    at once, and an expired one ends on time. Of a long header, such as one with a signed token, its SHA-256 is kept.
    However a caller writes the same credentials, in any order and beside those of other schemes, it is remembered once:
    as ``Application KEY; Bearer TOKEN``, sorted, which is the form that is found soonest.

    Args:
        readers: One for each scheme.
        clock: Seconds, for how long a header has been remembered.
        wall: Seconds since 1970.
        most: How many headers are remembered.
    """

    __slots__ = ("_clock", "_known", "_lock", "_most", "_readers", "_wall")

    def __init__(
        self,
        readers: Sequence[Reader],
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        most: int = REMEMBERED,
    ) -> None:
        self._readers = {reader.scheme: reader for reader in readers}
        self._clock = clock
        self._wall = wall
        self._most = most
        self._lock = threading.Lock()
        self._known: dict[str | bytes, tuple[Caller, float]] = {}

    def __call__(self, header: str | None) -> Caller:
        """Returns whoever sent this header; blocks if that is not remembered.

        Raises:
            NotAuthenticated: One of its credentials is unknown, expired or revoked.
            StoreUnavailable: A credential cannot be read now.
        """
        known = self.remembered(header)
        return self._read(header or "") if known is None else known

    def remembered(self, header: str | None) -> Caller | None:
        """Returns the caller if it is known without reading its credentials."""
        if header is None:
            return ANYBODY
        known = self._find(header)
        return known[0] if known is not None and known[1] > self._clock() else None

    def seen(self, header: str) -> str | None:
        """Returns the tenant as it was last known: for whom a request counts, not whether it is let in."""
        known = self._find(header)
        return None if known is None else known[0].tenant

    def seen_caller(self, header: str) -> Caller | None:
        """Returns the caller as it was last known; see :meth:`seen`."""
        known = self._find(header)
        return None if known is None else known[0]

    def _find(self, header: str) -> tuple[Caller, float] | None:
        """Returns the caller as it was last known, and until when that may be believed."""
        known = self._known.get(_key(header))
        if known is None:
            with suppress(NotAuthenticated):
                known = self._known.get(_key(_written(self._credentials(header))))
        return known

    def _credentials(self, header: str) -> list[tuple[str, str]]:
        """Returns the schemes and credentials that somebody reads.

        Raises:
            NotAuthenticated: There are too many.
        """
        if (parts := header.count(";") + 1) > MAX_PARTS:
            raise NotAuthenticated(f"Too many parts of the header Authorization: {parts}, at most {MAX_PARTS}.")
        found = []
        for part in header.split(";"):
            scheme, _, credential = part.strip().partition(" ")
            scheme = _SPELLED.get(scheme.lower(), scheme)
            if scheme in self._readers and (credential := credential.strip()):
                found.append((scheme, credential))
        if len(found) > MAX_CREDENTIALS:
            raise NotAuthenticated(f"Too many credentials: {len(found)}, at most {MAX_CREDENTIALS}.")
        return found

    def _read(self, header: str) -> Caller:
        credentials = self._credentials(header)
        if not credentials:
            return ANYBODY
        key = _key(_written(credentials))
        began = self._clock()
        try:
            found = [self._identify(self._readers[scheme], credential) for scheme, credential in credentials]
        except NotAuthenticated:
            with self._lock:
                self._known.pop(key, None)
            raise
        identities = [identity for identity, _ in found]
        caller = Caller(
            names=frozenset().union(*(identity.names for identity in identities)),
            grants=tuple(dict.fromkeys(grant for identity in identities for grant in identity.grants)),
            tenant=min(identity.tenant for identity in identities),
        )
        with self._lock:
            self._known.pop(key, None)
            while len(self._known) >= self._most:
                del self._known[next(iter(self._known))]
            self._known[key] = caller, began + min(seconds for _, seconds in found)
        return caller

    def _identify(self, reader: Reader, credential: str) -> tuple[Identity, float]:
        """Returns what a credential gives, and for how many seconds that may be believed."""
        now = self._wall()
        identity = reader.read(credential, now)
        left = math.inf if identity.expires is None else identity.expires - now
        if left <= 0:
            raise NotAuthenticated("The credential has expired.")
        return identity, min(reader.believed, left)


def _written(credentials: list[tuple[str, str]]) -> str:
    """Returns the header that is remembered for credentials."""
    return "; ".join(sorted({f"{scheme} {credential}" for scheme, credential in credentials}))


def _key(header: str) -> str | bytes:
    return header if len(header) <= SHORT else sha256(header.encode("utf-8", "surrogatepass")).digest()
