"""From the Authorization header to the caller's names, and the checks that every API makes in the same order."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256

from queuey.access import Action, allowed, owner_name
from queuey.errors import NotAllowed, NotAuthenticated, QueueyError
from queuey.messages import Queue
from queuey.service import QueueAccess, Service
from queuey.storage import Applications
from queuey.web.endpoint import WouldBlock
from queuey.web.responses import Environ
from queuey.web.scheduling import ANONYMOUS


class Authorization:
    """Checks who the caller is and whether it may use a queue."""

    __slots__ = ("_authenticate", "_service")

    def __init__(self, service: Service, authenticate: Authenticator) -> None:
        self._service = service
        self._authenticate = authenticate

    def names(self, environ: Environ) -> Names:
        """Returns the caller's names.

        Raises:
            NotAuthenticated: A credential is not valid.
        """
        return self._authenticate(environ.get("HTTP_AUTHORIZATION"))

    def tenant(self, environ: Environ) -> str | None:
        """Returns the application that a request counts for, by what is in memory.

        It is one name for all callers without a credential, and None for a credential that has not been looked at.
        """
        header = environ.get("HTTP_AUTHORIZATION")
        return ANONYMOUS if header is None else self._authenticate.seen(header)

    def find(self, match: dict[str, str]) -> Queue:
        """Looks up the queue that the path names; it comes before everything else."""
        return self._service.find(match["app"], match["queue"])

    def enter(self, environ: Environ, queue: Queue, action: Action) -> QueueAccess:
        """Checks that the caller may use a queue that was found.

        Raises:
            NotAuthenticated: A credential is not valid.
            NotAllowed: The caller may not do this.
        """
        return self.enter_as(self._authenticate(environ.get("HTTP_AUTHORIZATION")), queue, action)

    def enter_as(self, names: Names, queue: Queue, action: Action) -> QueueAccess:
        """Checks a caller whose names are known already.

        Raises:
            NotAllowed: The caller may not do this.
        """

        def check(row: Queue) -> None:
            if not allowed(row, names, action):
                raise NotAllowed(anonymous=not names)

        return self._service.enter(queue, check)

    def enter_at_once(self, environ: Environ, match: dict[str, str], action: Action) -> Queue:
        """Finds the queue and checks the caller by what is in memory. The row is good for one call.

        Raises:
            WouldBlock: The store would have to be asked, as it is before anybody is refused.
        """
        queue = self._service.store.cached_queue(match["app"], match["queue"])
        names = self._authenticate.remembered(environ.get("HTTP_AUTHORIZATION"))
        if queue is None or names is None or not allowed(queue, names, action):
            raise WouldBlock
        return queue

    def look_up(self, environ: Environ, match: dict[str, str]) -> None:
        """Brings into memory what :meth:`enter_at_once` needs. What is wrong shows when the request is handled."""
        with suppress(QueueyError):
            self.find(match)
            self.names(environ)

    def own(self, environ: Environ, application: str) -> None:
        """Checks that the caller is the application itself.

        Raises:
            ApplicationNotFound: There is none of that name.
            NotAuthenticated: A credential is not valid.
            NotAllowed: The caller is somebody else.
        """
        self._service.queues.require_application(application)
        names = self.names(environ)
        if owner_name(application) not in names:
            raise NotAllowed(anonymous=not names)


Names = frozenset[str]

NO_NAMES: Names = frozenset()
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
            return NO_NAMES
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
            return NO_NAMES
        known = (frozenset(names), self._clock() + seconds, min(names))
        if len(self._cache) >= self._most:
            self._cache.clear()
        self._cache[header] = known
        return known[0]
