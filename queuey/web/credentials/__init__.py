"""From the Authorization header to the caller: credentials, each of a scheme, each read by a reader.

A header has one or more credentials, separated by semicolons: ``Application KEY; Bearer TOKEN``. The caller has what
all of them give together; one that is not valid spoils the rest, and one of a scheme without a reader is ignored.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from queuey.access import Grant


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
