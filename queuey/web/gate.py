"""Letting callers in: the order of checks that all APIs share."""

from __future__ import annotations

from contextlib import suppress

from queuey.access import Action, allowed, owner_name
from queuey.errors import NotAllowed, QueueyError
from queuey.messages import Queue
from queuey.service import Entry, Service
from queuey.web.answers import Environ
from queuey.web.auth import Authenticator, Names
from queuey.web.later import WouldBlock
from queuey.web.shares import NOBODY


class Gate:
    """Who asks, and may they?"""

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

    def holder(self, environ: Environ) -> str | None:
        """Returns the application that a request counts for, by what is in memory.

        It is one name for all callers without a credential, and None for a credential that has not been looked at.
        """
        header = environ.get("HTTP_AUTHORIZATION")
        return NOBODY if header is None else self._authenticate.seen(header)

    def find(self, match: dict[str, str]) -> Queue:
        """Looks up the queue that the path names; it comes before everything else."""
        return self._service.find(match["app"], match["queue"])

    def enter(self, environ: Environ, queue: Queue, action: Action) -> Entry:
        """Lets the caller in to a queue that was found.

        Raises:
            NotAuthenticated: A credential is not valid.
            NotAllowed: The caller may not do this.
        """
        return self.enter_as(self._authenticate(environ.get("HTTP_AUTHORIZATION")), queue, action)

    def enter_as(self, names: Names, queue: Queue, action: Action) -> Entry:
        """Lets a caller in whose names are known already.

        Raises:
            NotAllowed: The caller may not do this.
        """

        def check(row: Queue) -> None:
            if not allowed(row, names, action):
                raise NotAllowed(anonymous=not names)

        return self._service.enter(queue, check)

    def enter_at_once(self, environ: Environ, match: dict[str, str], action: Action) -> Queue:
        """Finds the queue and lets the caller in by what is in memory. The row is good for one call.

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
        """Lets only the application itself in.

        Raises:
            ApplicationNotFound: There is none of that name.
            NotAuthenticated: A credential is not valid.
            NotAllowed: The caller is somebody else.
        """
        self._service.queues.require_application(application)
        names = self.names(environ)
        if owner_name(application) not in names:
            raise NotAllowed(anonymous=not names)
