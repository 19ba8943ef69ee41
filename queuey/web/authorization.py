"""The checks that every API makes of its callers, in the same order."""

from __future__ import annotations

from collections.abc import Container, Sequence
from contextlib import suppress

from queuey.access import ANYBODY, Action, Caller, allowed, concerns, lacking
from queuey.errors import NotAllowed, QueueNotFound, QueueyError
from queuey.messages import Queue
from queuey.service import QueueAccess, Service
from queuey.web.credentials import Authenticator
from queuey.web.endpoint import WouldBlock
from queuey.web.gateway.scheduling import ANONYMOUS
from queuey.web.responses import Environ

REFUSED = "queuey.refused"
"""Set in the environ: why the caller's credential was not accepted. Then nothing looks at it again."""


class Authorization:
    """Checks who the caller is and whether it may use a queue."""

    __slots__ = ("_authenticate", "_private", "_service")

    def __init__(self, service: Service, authenticate: Authenticator, private: Container[str] = ()) -> None:
        """Prepares.

        Args:
            service: Has the queues.
            authenticate: Knows callers.
            private: Applications of whose queues strangers are not told whether they exist.
        """
        self._service = service
        self._authenticate = authenticate
        self._private = private

    def caller(self, environ: Environ) -> Caller:
        """Returns who makes a request.

        Raises:
            NotAuthenticated: A credential is not valid.
        """
        if REFUSED in environ:
            raise environ[REFUSED]
        return self._authenticate(environ.get("HTTP_AUTHORIZATION"))

    def tenant(self, environ: Environ) -> str | None:
        """Returns whom a request counts for, by what is in memory.

        It is one name for all callers without a credential, and None for a credential that has not been looked at.
        """
        header = environ.get("HTTP_AUTHORIZATION")
        return ANONYMOUS if header is None else self._authenticate.seen(header)

    def seen(self, environ: Environ) -> Caller | None:
        """Returns the caller as it was last known, which says whom a request counts for, not whether it is let in.

        None: its credential has not been looked at, or is not valid.
        """
        header = environ.get("HTTP_AUTHORIZATION")
        return ANYBODY if header is None else self._authenticate.seen_caller(header)

    def know(self, environ: Environ) -> None:
        """Brings the caller into memory; may wait for an issuer, and then nothing else in this request does.

        What is wrong with its credential shows when the request is handled.
        """
        try:
            self.caller(environ)
        except QueueyError as error:
            environ[REFUSED] = error

    def find(self, environ: Environ, match: dict[str, str]) -> Queue:
        """Looks up the queue that the path names; it comes before everything else.

        Raises:
            ApplicationNotFound, QueueNotFound: There is none.
            NotAuthenticated: A credential is not valid, and the application is private.
            NotAllowed: The application is private and the caller a stranger, whether there is such a queue or not.
        """
        application, name = match["app"], match["queue"]
        if application not in self._private:
            return self._service.find(application, name)
        caller = self.caller(environ)

        def check(row: Queue) -> None:
            if not concerns(row, caller):
                raise NotAllowed(lacking(caller, application, "measure", name), anonymous=caller.anonymous)

        try:
            return self._service.enter(self._service.find(application, name), check).queue
        except QueueNotFound:
            check(Queue(application=application, name=name, uid=0, qid=0))
            raise

    def enter(self, environ: Environ, queue: Queue, action: Action) -> QueueAccess:
        """Checks that the caller may use a queue that was found. A request that takes long is checked again and again.

        Raises:
            NotAuthenticated: A credential is not valid.
            NotAllowed: The caller may not do this.
        """

        def check(row: Queue) -> None:
            caller = self.caller(environ)
            if not allowed(row, caller, action):
                text = lacking(caller, row.application, action, row.name)
                raise NotAllowed(text, anonymous=caller.anonymous)

        return self._service.enter(queue, check)

    def enter_at_once(self, environ: Environ, match: dict[str, str], action: Action) -> Queue:
        """Finds the queue and checks the caller by what is in memory. The row is good for one call.

        Raises:
            WouldBlock: The store would have to be asked, as it is before anybody is refused.
        """
        queue = self._service.store.cached_queue(match["app"], match["queue"])
        caller = self._authenticate.remembered(environ.get("HTTP_AUTHORIZATION"))
        if queue is None or caller is None or not allowed(queue, caller, action):
            raise WouldBlock
        return queue

    def look_up(self, environ: Environ, match: dict[str, str]) -> None:
        """Brings into memory what :meth:`enter_at_once` needs. What is wrong shows when the request is handled."""
        with suppress(QueueyError):
            self.find(environ, match)
            self.caller(environ)

    def patterns(self, environ: Environ, application: str, action: Action) -> Sequence[str]:
        """Returns patterns of the queues of an application with which the caller may do something: one at least.

        Raises:
            ApplicationNotFound: There is none of that name.
            NotAuthenticated: A credential is not valid.
            NotAllowed: There is no such queue.
        """
        self._service.queues.require_application(application)
        caller = self.caller(environ)
        if not (found := caller.patterns(application, action)):
            raise NotAllowed(lacking(caller, application, action), anonymous=caller.anonymous)
        return found

    def oversee(self, environ: Environ) -> None:
        """Checks that the caller may see which applications there are.

        Raises:
            NotAuthenticated: A credential is not valid.
            NotAllowed: It is no operator.
        """
        caller = self.caller(environ)
        if not any(grant.application is None for grant in caller.grants):
            raise NotAllowed("Only operators' keys list applications.", anonymous=caller.anonymous)
