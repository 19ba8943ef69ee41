"""From the Authorization header to the caller: credentials, each of a scheme, each read by a reader.

A header has one or more credentials, separated by semicolons: ``Application KEY; Bearer TOKEN``. The caller has what
all of them give together; one that is not valid spoils the rest, and one of a scheme without a reader is ignored.

The store has keys of applications, of the scheme ``Application``; readers of users' credentials are in :mod:`.users`.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Protocol

import msgspec

from queuey.access import VERBS, Grant, owner_name
from queuey.errors import NotAuthenticated
from queuey.messages import OPERATORS, Key
from queuey.storage import Applications, bridge


class Identity(msgspec.Struct, frozen=True):
    """Rights that one credential gives its holder.

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


class CredentialReader(Protocol):
    """Reads the credentials of one scheme. It is used by many threads.

    Attributes:
        scheme: The word before the credential, in the usual upper and lower case: ``Application``.
        believed: Seconds for which what was read may be believed without reading the credential again.
    """

    scheme: str
    believed: float

    def read(self, credential: str, now: float) -> Identity:
        """Reads a credential. It may block, with a bound of its own: it is never called on the event loop.

        It need not check when the credential ends, only report it.

        Args:
            credential: What follows the scheme, without blanks around it. Not blank; bytes are Latin-1.
            now: Seconds since 1970.

        Raises:
            NotAuthenticated: It is not valid; the message is shown to the caller.
            StoreUnavailable: It cannot be read now.
        """


def digest_of(key: str) -> bytes:
    """Returns the stored digest of a key. Header text carries bytes as Latin-1."""
    return sha256(key.encode("latin-1", "replace")).digest()


class ApplicationKeys:
    scheme = "Application"
    believed = 5.0
    """With a store's own 5 s this keeps revocation within 10 s."""

    def __init__(self, applications: Applications) -> None:
        self._applications = applications

    def read(self, credential: str, now: float) -> Identity:
        """Finds a key, an expired one included."""
        return self.find(digest_of(credential))

    def find(self, digest: bytes) -> Identity:
        """Finds the key with a digest.

        Raises:
            NotAuthenticated: There is none.
        """
        key = bridge.run(self._applications.find_key(digest))
        if key is None:
            raise NotAuthenticated("Invalid application key: it is unknown or was revoked.")
        return Identity(*_rights(key), tenant=owner_name(key.application), expires=key.expires)


def _rights(key: Key) -> tuple[frozenset[str], tuple[Grant, ...]]:
    """Returns a key's names and grants. A limited key has no name: principals of queues mean the whole application."""
    if key.application == OPERATORS:
        return frozenset(), (Grant(None, frozenset({"measure"})),)
    if key.scope is None:
        return frozenset({owner_name(key.application)}), ()
    allow = frozenset(verb for verb in VERBS if verb in key.scope.allow)
    return frozenset(), (Grant(key.application, allow, key.scope.queues),)
