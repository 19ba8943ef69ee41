"""Who the callers of facades without authentication are: the application that the facade serves."""

from __future__ import annotations

import math
import secrets

from queuey.access import owner_name
from queuey.errors import NotAuthenticated
from queuey.web.credentials import Identity


class FacadeCallers:
    """Reads credentials that a facade gives to its callers. See :class:`~queuey.web.credentials.CredentialReader`.

    They never leave the process, and no other caller can guess one.
    """

    scheme = "Facade"
    believed = math.inf

    def __init__(self) -> None:
        self._applications: dict[str, str] = {}

    def header(self, application: str) -> str:
        """Returns a header with which a request has all the rights of an application."""
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
