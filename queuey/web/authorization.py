"""The checks that every API makes of its callers, in the same order."""

from __future__ import annotations

import math
import re
import threading
import time
from collections.abc import Callable, Container, Sequence
from contextlib import suppress
from functools import partial
from hashlib import sha256
from typing import get_args

from queuey.access import ANYBODY, Caller, allowed, concerns, lacking, matches
from queuey.api.queues import Action
from queuey.deadletters import queue_for
from queuey.errors import NotAllowed, NotAuthenticated, NotFound, QueueNotFound, QueueyError
from queuey.groups.state import Credential
from queuey.messages import Queue
from queuey.service import QueueAccess, Service
from queuey.web.admission.scheduling import ANONYMOUS
from queuey.web.credentials import ApplicationKeys, CredentialReader, Identity, digest_of
from queuey.web.credentials.members import credential_of
from queuey.web.requests import Request

MAX_CACHED = 4096
"""Max cached headers."""
MAX_STALE = 30.0
"""Max seconds for which requests count for a caller that has to be read again."""
MAX_HEADER = 20 * 1024
"""Max characters of a header. A long poll keeps its header, and the event loop hashes it repeatedly."""
MAX_PLAIN_KEY = 128
"""Max characters of a header that is the cache's key as it is; application keys have 64."""
MAX_CREDENTIALS = 16
"""Max credentials in a header; each unknown one costs a read from the store, or a check of a signature."""
MAX_PARTS = 128
"""Max parts of a header, unknown schemes and blank ones included: they are split on the event loop."""
_SPELLED = {"bearer": "Bearer", "browserid": "BrowserID"}
"""Users' schemes, whose capitals do not count (RFC 9110, 11.1). Those of ``Application`` do, as in the original."""


CONSUMING: tuple[Action, ...] = ("read", "claim")
"""What a member of a consumer group does with a queue."""


class Authenticator:
    """Knows callers by their credentials. Safe for use by many threads.

    Only headers with valid credentials are remembered, and never past the end of one of them: so a new credential works
    at once, and an expired one ends on time. Of a long header, such as one with a signed token, its SHA-256 is kept.
    However a caller writes the same credentials, in any order and beside those of other schemes, it is remembered once:
    as ``Application KEY; Bearer TOKEN``, sorted, which is the form that is found soonest. At the limit, the
    caller with most headers loses its oldest: a user who makes ever new credentials pushes nobody else out.

    Args:
        readers: One for each scheme.
        clock: Seconds, for how long a header has been remembered.
        wall: Seconds since 1970.
        most: How many headers are remembered.
    """

    __slots__ = ("_clock", "_known", "_lock", "_most", "_of_caller", "_readers", "_wall")

    def __init__(
        self,
        readers: Sequence[CredentialReader],
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        most: int = MAX_CACHED,
    ) -> None:
        self._readers = {reader.scheme: reader for reader in readers}
        self._clock = clock
        self._wall = wall
        self._most = most
        self._lock = threading.Lock()
        self._known: dict[str | bytes, tuple[Caller, float]] = {}
        self._of_caller: dict[frozenset[str], dict[str | bytes, None]] = {}

    def add(self, reader: CredentialReader) -> None:
        """Adds a reader of credentials, before the first request."""
        self._readers[reader.scheme] = reader

    def __call__(self, header: str | None) -> Caller:
        """Returns the caller that sent this header; blocks if it is not in memory.

        Raises:
            NotAuthenticated: One of its credentials is unknown, expired or revoked.
            StoreUnavailable: A credential cannot be read now.
        """
        known = self.remembered(header)
        return self._read(header or "") if known is None else known

    def remembered(self, header: str | None) -> Caller | None:
        """Returns the caller if it is known without reading its credentials."""
        if header is None:
            return ANYBODY
        known = self._known.get(header) or self._find(header)
        return known[0] if known is not None and known[1] > self._clock() else None

    def seen(self, header: str) -> str | None:
        """Returns the tenant that was last known: requests count for it, but it gives no permission.

        It is None if the header is unknown, or was read so long ago that its key may have been revoked.
        """
        known = self._known.get(header) or self._find(header)
        return known[0].tenant if known is not None and known[1] + MAX_STALE > self._clock() else None

    def seen_caller(self, header: str) -> Caller | None:
        """Returns the caller as it was last known, however long ago; it gives no permission."""
        known = self._find(header)
        return None if known is None else known[0]

    def keys(self, header: str) -> list[bytes]:
        """Returns the digests of the application keys in a header."""
        return [digest_of(key) for scheme, key in self._credentials(header) if scheme == ApplicationKeys.scheme]

    def forget(self, header: str) -> None:
        """Drops a cached caller: one of its credentials has ended."""
        with self._lock:
            self._forget(_key(header))

    def _find(self, header: str) -> tuple[Caller, float] | None:
        """Returns the caller as it was last known, and until when that may be believed."""
        if len(header) > MAX_HEADER:
            return None
        known = self._known.get(header if len(header) <= MAX_PLAIN_KEY else _key(header))
        if known is None:
            with suppress(NotAuthenticated):
                known = self._known.get(_key(_written(self._credentials(header))))
        return known

    def _credentials(self, header: str) -> list[tuple[str, str]]:
        """Returns the schemes and credentials that a reader accepts.

        Raises:
            NotAuthenticated: There are too many, or the header is too long.
        """
        if len(header) > MAX_HEADER:
            text = f"The header Authorization is too long: {len(header)} characters, at most {MAX_HEADER}."
            raise NotAuthenticated(f"{text} Send only the credentials that this service knows.")
        if (parts := header.count(";") + 1) > MAX_PARTS:
            raise NotAuthenticated(f"Too many parts of the header Authorization: {parts}, at most {MAX_PARTS}.")
        found = []
        for part in header.split(";"):
            scheme, _, credential = part.strip().partition(" ")
            scheme = _SPELLED.get(scheme.lower(), scheme)
            if scheme in self._readers and (credential := credential.strip()):
                found.append((scheme, credential))
        if len(found) > MAX_CREDENTIALS:
            raise NotAuthenticated(f"Too many credentials: {len(found)}, at most {MAX_CREDENTIALS}.")
        return found

    def _read(self, header: str) -> Caller:
        credentials = self._credentials(header)
        if not credentials:
            return ANYBODY
        key = _key(_written(credentials))
        began = self._clock()
        try:
            found = [self._identify(self._readers[scheme], credential) for scheme, credential in credentials]
        except NotAuthenticated:
            with self._lock:
                self._forget(key)
            raise
        identities = [identity for identity, _ in found]
        caller = Caller(
            names=frozenset().union(*(identity.names for identity in identities)),
            grants=tuple(dict.fromkeys(grant for identity in identities for grant in identity.grants)),
            tenant=min(identity.tenant for identity in identities),
            expires=min((each.expires for each in identities if each.expires is not None), default=None),
        )
        with self._lock:
            self._forget(key)
            if len(self._known) >= self._most:
                most = max(self._of_caller.values(), key=len)
                self._forget(next(iter(most)))
            self._known[key] = caller, began + min(seconds for _, seconds in found)
            self._of_caller.setdefault(caller.names, {})[key] = None
        return caller

    def _forget(self, key: str | bytes) -> None:
        """Forgets a header, with the lock held."""
        if (known := self._known.pop(key, None)) is not None:
            names = known[0].names
            del self._of_caller[names][key]
            if not self._of_caller[names]:
                del self._of_caller[names]

    def _identify(self, reader: CredentialReader, credential: str) -> tuple[Identity, float]:
        """Returns what a credential gives, and for how many seconds that may be believed."""
        now = self._wall()
        identity = reader.read(credential, now)
        left = math.inf if identity.expires is None else identity.expires - now
        if left <= 0:
            raise NotAuthenticated("The credential has expired.")
        return identity, min(reader.believed, left)


def _written(credentials: list[tuple[str, str]]) -> str:
    """Returns the header that is remembered for credentials."""
    return "; ".join(sorted({f"{scheme} {credential}" for scheme, credential in credentials}))


def _key(header: str) -> str | bytes:
    return header if len(header) <= MAX_PLAIN_KEY else sha256(header.encode("utf-8", "surrogatepass")).digest()


class Authorization:
    """Checks who the caller is and whether it may use a queue."""

    __slots__ = ("_authenticate", "_private", "_service")

    def __init__(self, service: Service, authenticate: Authenticator, private: Container[str] = ()) -> None:
        """Prepares.

        Args:
            service: Has the queues.
            authenticate: Knows callers.
            private: Applications that do not reveal to other callers which queues exist.
        """
        self._service = service
        self._authenticate = authenticate
        self._private = private

    def caller(self, request: Request) -> Caller:
        """Returns the caller of a request.

        Raises:
            NotAuthenticated: A credential is not valid.
        """
        if request.refused is not None:
            raise request.refused
        return self._authenticate(request.headers.get("authorization"))

    async def identify(self, request: Request) -> Caller:
        """Async variant of :meth:`caller`; a caller that is not cached is looked up in a thread."""
        if request.refused is not None:
            raise request.refused
        caller = self._authenticate.remembered(request.headers.get("authorization"))
        return await request.in_pool(lambda: self.caller(request)) if caller is None else caller

    async def member(self, request: Request) -> Credential:
        """Returns the credential of a member of a consumer group.

        Raises:
            NotAuthenticated: A credential is not valid.
            NotAllowed: The request has none.
        """
        caller = await self.identify(request)
        self.require_credential(request, caller)
        return credential_of(self._authenticate.keys(request.headers.get("authorization", "")), caller)

    def former_member(self, request: Request) -> Credential | None:
        """Returns the credential of a member, without rights, if it was valid a moment ago; else None."""
        if self.seen(request) is None:
            return None
        return credential_of(self._authenticate.keys(request.headers.get("authorization", "")), ANYBODY)

    @staticmethod
    def require_credential(request: Request, caller: Caller) -> None:
        """Refuses a caller without one (``NotAllowed``), before a body is read for which everybody lacks a right."""
        if caller.anonymous:
            raise _refusal(request, caller, "")

    def forget(self, request: Request) -> None:
        """Forgets the caller of a request whose credential has ended."""
        if (header := request.headers.get("authorization")) is not None:
            self._authenticate.forget(header)

    def tenant(self, request: Request) -> str | None:
        """Returns the tenant of a request from memory.

        It is one name for all callers without a credential, and None for a credential that has not been read yet.
        """
        header = request.headers.get("authorization")
        return ANONYMOUS if header is None else self._authenticate.seen(header)

    def seen(self, request: Request) -> Caller | None:
        """Returns the caller that was last known: requests count for it, but it gives no permission.

        None: its credential has not been read, or is not valid.
        """
        header = request.headers.get("authorization")
        return ANYBODY if header is None else self._authenticate.seen_caller(header)

    def know(self, request: Request) -> None:
        """Authenticates the caller ahead of the view. Blocks if an issuer has to be asked, so that the view does not.

        An error of the credential is kept, and raised when the request is handled.
        """
        try:
            self.caller(request)
        except QueueyError as error:
            request.refused = error

    def find(self, request: Request, match: dict[str, str]) -> Queue:
        """Looks up the queue that the path names.

        Raises:
            ApplicationNotFound, QueueNotFound: There is none.
            NotAuthenticated: A credential is not valid, and the application is private.
            NotAllowed: The application is private and the caller a stranger, whether there is such a queue or not.
        """
        application, name = match["app"], match["queue"]
        if application not in self._private:
            return self._service.find(application, name)
        caller = self.caller(request)

        def check(row: Queue) -> None:
            if not concerns(row, caller):
                raise _refusal(request, caller, lacking(caller, application, "measure", name))

        try:
            return self._service.enter(self._service.find(application, name), check).queue
        except QueueNotFound:
            check(Queue(application=application, name=name, uid=0, qid=0))
            raise

    def enter(
        self, request: Request, match: dict[str, str], action: Action, *, dead_letter: str | None = None
    ) -> QueueAccess:
        """Authorizes the caller for the queue that the path names; blocks. See :meth:`admit` for coroutines.

        Args:
            request: The request.
            match: Names the queue.
            action: What it does. A request that takes long is checked again and again.
            dead_letter: Where it has the queue's dead letters go from now on; see :meth:`require_dead_letter`.

        Raises:
            ApplicationNotFound, QueueNotFound: As :meth:`find`.
            NotAuthenticated: A credential is not valid.
            NotAllowed: The caller may not do this.
        """
        return self._service.enter(self.find(request, match), partial(self._check, request, action, dead_letter))

    def enter_to_read(self, request: Request, application: str, name: str) -> QueueAccess | NotFound | NotAllowed:
        """Authorizes the caller for one of several queues; an error of one does not close the others.

        Raises:
            NotAuthenticated: A credential is not valid.
        """
        try:
            return self.enter(request, {"app": application, "queue": name}, "read")
        except (NotFound, NotAllowed) as error:
            return error

    async def admit(self, request: Request, match: dict[str, str], action: Action) -> QueueAccess:
        """Authorizes the caller for the queue that the path names, as :meth:`enter` does.

        What is not in memory is looked up in a thread, as before every refusal.
        """
        admitted = self.admit_at_once(request, match, action)
        if admitted is None:
            return await request.in_pool(lambda: self.enter(request, match, action))
        return admitted

    def admit_at_once(self, request: Request, match: dict[str, str], action: Action) -> QueueAccess | None:
        """Authorizes a caller by what is in memory. Returns None if something has to be looked up (:meth:`admit`)."""
        queue = self._service.store.catalogue.cached_queue(match["app"], match["queue"])
        caller = self._authenticate.remembered(request.headers.get("authorization"))
        if queue is None or caller is None or request.refused is not None or not allowed(queue, caller, action):
            return None
        check = partial(self._check, request, action, None)
        return QueueAccess(self._service.core, self._service.store, queue, check)

    def _check(self, request: Request, action: Action, dead_letter: str | None, row: Queue) -> None:
        """Lets the caller in, or raises ``NotAuthenticated`` or ``NotAllowed``."""
        caller = self.caller(request)
        if not allowed(row, caller, action):
            raise _refusal(request, caller, lacking(caller, row.application, action, row.name))
        if dead_letter != row.dead_letter:
            self.require_dead_letter(request, row.application, row.name, dead_letter)

    def require_dead_letter(
        self, request: Request, application: str, name: str | None, dead_letter: str | None
    ) -> None:
        """Checks that the caller may have dead letters stored in a queue, whether that exists or not.

        Args:
            request: The request.
            application: The owner of both queues.
            name: The queue that they come from; its own dead letters are always allowed. None: not known yet.
            dead_letter: The queue that gets them; nothing: there is nothing to check.

        Raises:
            NotAuthenticated: A credential is not valid.
            NotAllowed: The caller may neither send to that queue nor create and change it.
        """
        if not dead_letter or (name and dead_letter == queue_for(name)):
            return
        caller = self.caller(request)
        row = Queue(application=application, name=dead_letter, uid=0, qid=0)
        if not allowed(row, caller, "send") and not allowed(row, caller, "admin"):
            text = f"dead_letter names another queue. {lacking(caller, application, 'send', dead_letter)}"
            raise _refusal(request, caller, text)

    def patterns(self, request: Request, application: str, action: Action) -> Sequence[str]:
        """Returns patterns of the queues of an application with which the caller may do something: one at least.

        Raises:
            ApplicationNotFound: There is none of that name.
            NotAuthenticated: A credential is not valid.
            NotAllowed: There is no such queue.
        """
        self._service.queues.require_application(application)
        caller = self.caller(request)
        if not (found := caller.patterns(application, action)):
            raise _refusal(request, caller, lacking(caller, application, action))
        return found

    def matching(self, request: Request, application: str, action: Action) -> Callable[[str], bool]:
        """Returns what says of a queue's name whether :meth:`patterns` has it. Raises as that does."""
        patterns = self.patterns(request, application, action)
        return lambda name: any(matches(pattern, name) for pattern in patterns)

    def creation(self, request: Request, application: str) -> Callable[[str], None]:
        """Returns what refuses the names of queues that the caller may not create. Raises as :meth:`patterns`."""
        patterns = self.patterns(request, application, "admin")

        def check(name: str) -> None:
            if not any(matches(pattern, name) for pattern in patterns):
                raise NotAllowed(f"The credential creates only queues that match {', '.join(patterns)}.")

        return check

    def require_consumer(self, request: Request, application: str, names: Sequence[str], shapes: Sequence[str]) -> None:
        """Checks that the caller may consume queues as a member of a group.

        Args:
            request: The request.
            application: The owner of the queues.
            names: Names of queues; the caller may consume each of them.
            shapes: Shell patterns; one of them may match a name that the caller's own patterns match, as far as the
                beginnings show.

        Raises:
            ApplicationNotFound: The application does not exist.
            QueueNotFound: A queue does not exist, and the caller's rights do not cover its name.
            NotAuthenticated: A credential is not valid.
            NotAllowed: The caller lacks ``read`` or ``claim``.
        """
        self._service.queues.require_application(application)
        caller = self.caller(request)
        self.require_credential(request, caller)
        for name in names:
            try:
                for action in CONSUMING:
                    self.enter(request, {"app": application, "queue": name}, action)
            except QueueNotFound:
                if not consumes(Queue(application=application, name=name, uid=0, qid=0), caller):
                    raise
        for action in CONSUMING:
            begins = [pattern.partition("*")[0] for pattern in caller.patterns(application, action)]
            if shapes and not any(_may_meet(shape, begin) for shape in shapes for begin in begins):
                raise _refusal(request, caller, lacking(caller, application, action))

    def readable(self, request: Request, application: str, most: int) -> list[str]:
        """Returns names of queues that the caller's rights open to it for reading, whether they exist or not.

        Those that only name it as a principal are not among them: nothing lists these.

        Args:
            request: The request.
            application: The application that owns the queues.
            most: How many at most.

        Raises:
            NotAuthenticated: A credential is not valid.
            NotAllowed: The request has no credential.
        """
        caller = self.caller(request)
        self.require_credential(request, caller)
        names = dict.fromkeys(
            grant.queues
            for grant in caller.grants
            if isinstance(grant.queues, str) and grant.permits(application, "read")
        )
        if patterns := caller.patterns(application, "read"):
            found, _ = self._service.queues.list(application, start="", limit=most, patterns=patterns)
            names |= dict.fromkeys(queue.name for queue in found)
        return list(names)[:most]

    def reader(self, request: Request, application: str) -> str:
        """Returns the name under which the caller's read marks are kept.

        Raises:
            NotAuthenticated: A credential is not valid.
            NotAllowed: The caller is neither a user nor an application, or one that this application does not know.
        """
        caller = self.caller(request)
        if (found := caller.reader_within(application)) is None:
            raise _refusal(request, caller, "Read marks are kept for users of the application, and for applications.")
        return found

    def rights(self, request: Request, application: str, name: str) -> list[Action]:
        """Returns what the caller may do with a queue of this name, whether it exists or not.

        The principals and the type of a queue count only for callers whom it concerns (:func:`queuey.access.concerns`).
        For all others nothing is allowed, as if there were no queue.

        Raises:
            NotAuthenticated: A credential is not valid.
        """
        caller = self.caller(request)
        try:
            row = self._service.find(application, name)
        except QueueNotFound:
            row = Queue(application=application, name=name, uid=0, qid=0)
        return [action for action in get_args(Action) if allowed(row, caller, action)]

    def oversee(self, request: Request) -> None:
        """Checks that the caller may see which applications there are.

        Raises:
            NotAuthenticated: A credential is not valid.
            NotAllowed: It is no operator.
        """
        caller = self.caller(request)
        if not any(grant.application is None for grant in caller.grants):
            raise _refusal(request, caller, "Only operators' keys list applications.")


def consumes(queue: Queue, caller: Caller) -> bool:
    """Returns whether a caller may consume a queue as a member of a group."""
    return all(allowed(queue, caller, action) for action in CONSUMING)


def _may_meet(shape: str, begin: str) -> bool:
    """Returns whether a shell pattern may match a name with a beginning, as far as its beginning shows."""
    own = re.split(r"[*?\[]", shape, maxsplit=1)[0]
    return own.startswith(begin) or begin.startswith(own)


def _refusal(request: Request, caller: Caller, lacks: str) -> NotAllowed:
    """Returns the error of what a caller may not do. A caller without a credential learns how to send one."""
    if caller.anonymous:
        found = (
            "The header Authorization has no scheme that is known here" if request.headers.get("authorization") else ""
        )
        lacks = f"{found or 'This needs a credential'}. Send the header Authorization: Application KEY"
    return NotAllowed(lacks, anonymous=caller.anonymous)
