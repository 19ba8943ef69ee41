"""Reads application keys: ``Application KEY``."""

from __future__ import annotations

from hashlib import sha256

from queuey.access import VERBS, Grant, owner_name
from queuey.errors import NotAuthenticated
from queuey.messages import OPERATORS, Key
from queuey.storage import Applications
from queuey.web.credentials import Identity


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
        key = self._applications.find_key(digest)
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
