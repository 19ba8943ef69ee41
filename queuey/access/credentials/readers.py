"""Credentials: from the Authorization header to the caller, with a reader for each scheme.

A header has one or more credentials, separated by semicolons: ``Application KEY; Bearer TOKEN``. The caller has the
rights of all of them together. One invalid credential makes the whole header invalid; credentials of a scheme without a
reader are ignored.

The store has the keys of applications, of the scheme ``Application``; :mod:`.users` has the readers of users'
credentials.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Protocol

import msgspec

from queuey.model.errors import NotAuthenticated
from queuey.model.messages import OPERATORS, Key
from queuey.model.rights import VERBS, Grant, owner_name
from queuey.storage import Applications


class Identity(msgspec.Struct, frozen=True):
    """Rights that one credential gives its holder.

    Attributes:
        names: See :class:`~queuey.model.rights.Caller`.
        grants: See :class:`~queuey.model.rights.Caller`.
        tenant: See :class:`~queuey.model.rights.Caller`.
        expires: Seconds since 1970 when the credential expires, or None if it does not.
    """

    names: frozenset[str]
    grants: tuple[Grant, ...]
    tenant: str
    expires: float | None = None


class CredentialReader(Protocol):
    """Reads the credentials of one scheme. Thread-safe.

    Attributes:
        scheme: The word before the credential, in its usual upper and lower case: ``Application``.
        max_cache_seconds: Seconds for which an identity may be cached without reading the credential again.
    """

    scheme: str
    max_cache_seconds: float

    async def read(self, credential: str, now: float) -> Identity:
        """Reads a credential, within a bounded time. Work that blocks runs in a thread.

        It need not check whether the credential has expired, only report the expiry.

        Args:
            credential: The text after the scheme, stripped and not blank; bytes are Latin-1.
            now: Seconds since 1970.

        Raises:
            NotAuthenticated: The credential is not valid; the message is shown to the caller.
            StoreUnavailable: The credential cannot be read now.
        """


def digest_of(key: str) -> bytes:
    """Returns the stored digest of a key. Bytes of a header are Latin-1 in its text."""
    return sha256(key.encode("latin-1", "replace")).digest()


class ApplicationKeys:
    scheme = "Application"
    max_cache_seconds = 5.0
    """A store caches keys for 5 s, too, so a revocation takes effect within 10 s."""

    def __init__(self, applications: Applications) -> None:
        self._applications = applications

    async def read(self, credential: str, now: float) -> Identity:
        return await self.find(digest_of(credential))

    async def find(self, digest: bytes) -> Identity:
        key = await self._applications.find_key(digest)
        if key is None:
            raise NotAuthenticated("Invalid application key: it is unknown or was revoked.")
        return Identity(*_find_rights(key), tenant=owner_name(key.application), expires=key.expires)


def _find_rights(key: Key) -> tuple[frozenset[str], tuple[Grant, ...]]:
    if key.application == OPERATORS:
        return frozenset(), (Grant(None, frozenset({"measure"})),)
    if key.scope is None:
        return frozenset({owner_name(key.application)}), ()
    allow = frozenset(verb for verb in VERBS if verb in key.scope.allow)
    return frozenset(), (Grant(key.application, allow, key.scope.queues),)
