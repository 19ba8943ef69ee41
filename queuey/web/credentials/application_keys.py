"""Reads application keys: ``Application KEY``."""

from __future__ import annotations

from hashlib import sha256

from queuey.access import owner_name
from queuey.errors import NotAuthenticated
from queuey.storage import Applications
from queuey.web.credentials import Identity


def digest_of(key: str) -> bytes:
    """Returns what is kept of a key. Header text carries bytes as Latin-1, as WSGI has it."""
    return sha256(key.encode("latin-1", "replace")).digest()


class ApplicationKeys:
    """Reads the keys that a store has. See :class:`~queuey.web.credentials.Reader`."""

    scheme = "Application"
    believed = 5.0
    """With a store's own 5 s this keeps revocation within 10 s."""

    def __init__(self, applications: Applications) -> None:
        self._applications = applications

    def read(self, credential: str, now: float) -> Identity:
        """Finds a key."""
        key = self._applications.find_key(digest_of(credential))
        if key is None or (key.expires is not None and key.expires <= now):
            raise NotAuthenticated("Invalid application key")
        name = owner_name(key.application)
        return Identity(names=frozenset({name}), grants=(), tenant=name, expires=key.expires)
