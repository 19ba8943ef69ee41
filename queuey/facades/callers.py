"""Callers of facades without a key of ours: the served application, or that of an access key."""

from __future__ import annotations

import math
import secrets

from queuey.access import owner_name
from queuey.errors import NotAuthenticated
from queuey.storage import Applications
from queuey.web.credentials import Identity
from queuey.web.credentials.application_keys import ApplicationKeys


class FacadeCallers:
    """Reads credentials that a facade gives to its callers. See :class:`~queuey.web.credentials.CredentialReader`.

    They never leave the process, and no other caller can guess one.
    """

    scheme = "Facade"
    believed = math.inf

    def __init__(self) -> None:
        self._applications: dict[str, str] = {}

    def header(self, application: str) -> str:
        """Returns an Authorization header with all rights of an application."""
        secret = secrets.token_hex(32)
        self._applications[secret] = application
        return f"{self.scheme} {secret}"

    def read(self, credential: str, now: float) -> Identity:
        """Finds the application of a credential."""
        application = self._applications.get(credential)
        if application is None:
            raise NotAuthenticated("Invalid credential: only facades make those of this scheme.")
        name = owner_name(application)
        return Identity(frozenset({name}), (), tenant=name)


class SignedCallers:
    """Reads credentials of requests that name an access key, and are signed with its secret.

    They say which key that is. Whether the signature is right a facade finds out before it does anything.
    """

    scheme = "Signed"
    believed = ApplicationKeys.believed

    def __init__(self, applications: Applications) -> None:
        self._keys = ApplicationKeys(applications)
        self._mark = secrets.token_hex(8)

    def header(self, digest: bytes) -> str:
        """Returns an Authorization header with the rights of the key that has this digest."""
        return f"{self.scheme} {self._mark}{digest.hex()}"

    def read(self, credential: str, now: float) -> Identity:
        """Finds the key of a credential."""
        mark, digest = credential[: len(self._mark)], credential[len(self._mark) :]
        if not secrets.compare_digest(mark, self._mark):
            raise NotAuthenticated("Invalid credential: only facades make those of this scheme.")
        return self._keys.find(bytes.fromhex(digest))
