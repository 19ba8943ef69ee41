"""Authentication and authorization: the checks that every API makes of its callers, in the same order."""

from __future__ import annotations

import math
import re
import threading
import time
from collections.abc import Awaitable, Callable, Container, Iterable, Sequence
from contextlib import suppress
from functools import partial
from hashlib import sha256
from typing import Protocol, get_args

from queuey.access.credentials.members import credential_of
from queuey.access.credentials.readers import ApplicationKeys, CredentialReader, Identity, digest_of
from queuey.access.queue_access import QueueAccess, find_queue, require_application
from queuey.model.deadletters import queue_for
from queuey.model.errors import NotAllowed, NotAuthenticated, NotFound, QueueNotFound
from queuey.model.messages import Queue
from queuey.model.rights import (
    ANYBODY,
    Action,
    Caller,
    MemberCredential,
    explain_refusal,
    is_allowed,
    matches,
    may_know,
)
from queuey.storage import Store
from queuey.web.admission.scheduling import ANONYMOUS
from queuey.web.requests import Request

MAX_CACHED = 4096
MAX_STALE = 30.0
"""Max seconds for which requests still count for a cached caller after its cache entry has expired."""
MAX_HEADER = 20 * 1024
"""Max characters of the Authorization header. A long poll keeps it, and the event loop hashes it repeatedly."""
MAX_PLAIN_KEY = 128
"""Max characters of a header that is its own cache key; longer ones are hashed. Application keys have 64."""
MAX_CREDENTIALS = 16
"""Max credentials in a header. Each unknown one costs a store read or a signature check."""
MAX_PARTS = 128
"""Max parts of a header, counting blank parts and unknown schemes: the event loop splits them."""
_CANONICAL_SCHEMES = {"bearer": "Bearer", "browserid": "BrowserID"}
"""Schemes of users, which are case-insensitive (RFC 9110, 11.1). ``Application`` is not, as in the original."""


class QueueLister(Protocol):
    """Lists queues of an application by name, as :meth:`queuey.queues.queues.Queues.list` does."""

    def __call__(
        self, application: str, *, start: str, limit: int, patterns: Sequence[str]
    ) -> Awaitable[tuple[Sequence[Queue], str | None]]: ...


CONSUMER_ACTIONS: tuple[Action, ...] = ("read", "claim")


class Authenticator:
    """Authenticates callers by their credentials. Thread-safe.

    Only headers with valid credentials are cached, and never past the expiry of one of them: a new credential works at
    once, and an expired one ends on time. A long header, such as one with a signed token, is cached by its SHA-256.
    The order of the credentials, and credentials of other schemes beside them, make no second cache entry: the key is
    ``Application KEY; Bearer TOKEN``, sorted, and a header in this form is found fastest. When the cache is full, the
    caller with most headers loses its oldest: a user who keeps making new credentials evicts nobody else.

    Args:
        readers: One for each scheme.
        clock: The monotonic clock, in seconds, for the age of cached headers.
        wall: The wall clock, in seconds since 1970.
        max_cached: Max cached headers.
    """

    __slots__ = ("_cache", "_clock", "_keys_by_caller", "_lock", "_max_cached", "_readers", "_wall")

    def __init__(
        self,
        readers: Sequence[CredentialReader],
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        max_cached: int = MAX_CACHED,
    ) -> None:
        self._readers = {reader.scheme: reader for reader in readers}
        self._clock = clock
        self._wall = wall
        self._max_cached = max_cached
        self._lock = threading.Lock()
        self._cache: dict[str | bytes, tuple[Caller, float]] = {}
        self._keys_by_caller: dict[frozenset[str], dict[str | bytes, None]] = {}

    def add(self, reader: CredentialReader) -> None:
        self._readers[reader.scheme] = reader

    async def __call__(self, header: str | None) -> Caller:
        """Returns the caller that sent this header; reads its credentials if it is not cached.

        Raises:
            NotAuthenticated: A credential is unknown, expired or revoked.
            StoreUnavailable: A credential cannot be read now.
        """
        caller = self.cached_caller(header)
        return await self._read_caller(header or "") if caller is None else caller

    def cached_caller(self, header: str | None) -> Caller | None:
        """Returns the caller if it is cached and its entry has not expired. Without a header it is ``ANYBODY``."""
        if header is None:
            return ANYBODY
        entry = self._cache.get(header) or self._find_entry(header)
        return entry[0] if entry is not None and entry[1] > self._clock() else None

    def known_tenant(self, header: str | None) -> str | None:
        """Returns the tenant of a cached caller, even shortly after its entry expired; it gives no permission.

        Requests count for this tenant; all without a header have one. Returns None if the header is unknown, or was
        read so long ago that its key may have been revoked.
        """
        if header is None:
            return ANONYMOUS
        entry = self._cache.get(header) or self._find_entry(header)
        return entry[0].tenant if entry is not None and entry[1] + MAX_STALE > self._clock() else None

    def known_caller(self, header: str) -> Caller | None:
        entry = self._find_entry(header)
        return None if entry is None else entry[0]

    def list_key_digests(self, header: str) -> list[bytes]:
        """Returns the digests of a header's application keys, in their order.

        Raises ``NotAuthenticated`` as reading does.
        """
        return [digest_of(key) for scheme, key in self._parse_credentials(header) if scheme == ApplicationKeys.scheme]

    def forget(self, header: str) -> None:
        with suppress(NotAuthenticated):
            key = _make_cache_key(_make_canonical_header(self._parse_credentials(header)))
            with self._lock:
                self._forget(key)

    def _find_entry(self, header: str) -> tuple[Caller, float] | None:
        """Returns the cached caller and its time of expiry, for any form of the header; None if it is not cached.

        An expired entry is returned as well.
        """
        if len(header) > MAX_HEADER:
            return None
        entry = self._cache.get(header if len(header) <= MAX_PLAIN_KEY else _make_cache_key(header))
        if entry is None:
            with suppress(NotAuthenticated):
                entry = self._cache.get(_make_cache_key(_make_canonical_header(self._parse_credentials(header))))
        return entry

    def _parse_credentials(self, header: str) -> list[tuple[str, str]]:
        if len(header) > MAX_HEADER:
            text = f"The header Authorization is too long: {len(header)} characters, at most {MAX_HEADER}."
            raise NotAuthenticated(f"{text} Send only the credentials that this service knows.")
        if (parts := header.count(";") + 1) > MAX_PARTS:
            raise NotAuthenticated(f"Too many parts of the header Authorization: {parts}, at most {MAX_PARTS}.")
        credentials = []
        for part in header.split(";"):
            scheme, _, credential = part.strip().partition(" ")
            scheme = _CANONICAL_SCHEMES.get(scheme.lower(), scheme)
            if scheme in self._readers and (credential := credential.strip()):
                credentials.append((scheme, credential))
        if len(credentials) > MAX_CREDENTIALS:
            raise NotAuthenticated(f"Too many credentials: {len(credentials)}, at most {MAX_CREDENTIALS}.")
        return credentials

    async def _read_caller(self, header: str) -> Caller:
        """Reads all credentials of a header and caches their caller, who has the rights of all of them.

        The caller expires with the first of them, and counts for the first tenant by name. One bad credential refuses
        all, and drops the cached caller. Without a known credential the caller is ``ANYBODY``, and is not cached.
        """
        credentials = self._parse_credentials(header)
        if not credentials:
            return ANYBODY
        key = _make_cache_key(_make_canonical_header(credentials))
        began = self._clock()
        try:
            results = [await self._identify(self._readers[scheme], credential) for scheme, credential in credentials]
        except NotAuthenticated:
            with self._lock:
                self._forget(key)
            raise
        identities = [identity for identity, _ in results]
        caller = Caller(
            names=frozenset().union(*(identity.names for identity in identities)),
            grants=tuple(dict.fromkeys(grant for identity in identities for grant in identity.grants)),
            tenant=min(identity.tenant for identity in identities),
            expires=min((i.expires for i in identities if i.expires is not None), default=None),
        )
        with self._lock:
            self._forget(key)
            if len(self._cache) >= self._max_cached:
                keys = max(self._keys_by_caller.values(), key=len)
                self._forget(next(iter(keys)))
            self._cache[key] = caller, began + min(seconds for _, seconds in results)
            self._keys_by_caller.setdefault(caller.names, {})[key] = None
        return caller

    def _forget(self, key: str | bytes) -> None:
        if (entry := self._cache.pop(key, None)) is not None:
            names = entry[0].names
            del self._keys_by_caller[names][key]
            if not self._keys_by_caller[names]:
                del self._keys_by_caller[names]

    async def _identify(self, reader: CredentialReader, credential: str) -> tuple[Identity, float]:
        now = self._wall()
        identity = await reader.read(credential, now)
        remaining_seconds = math.inf if identity.expires is None else identity.expires - now
        if remaining_seconds <= 0:
            raise NotAuthenticated("The credential has expired.")
        return identity, min(reader.max_cache_seconds, remaining_seconds)


def _make_canonical_header(credentials: list[tuple[str, str]]) -> str:
    return "; ".join(sorted({f"{scheme} {credential}" for scheme, credential in credentials}))


def _make_cache_key(header: str) -> str | bytes:
    return header if len(header) <= MAX_PLAIN_KEY else sha256(header.encode("utf-8", "surrogatepass")).digest()


class Authorization:
    """Checks who the caller is and whether it may use a queue.

    Args:
        store: Reads queues and applications.
        authenticate: Authenticates callers.
        private: Applications that do not reveal to other callers which queues exist.
    """

    __slots__ = ("_authenticate", "_private", "_store")

    def __init__(self, store: Store, authenticate: Authenticator, private: Container[str] = ()) -> None:
        self._store = store
        self._authenticate = authenticate
        self._private = private

    async def identify(self, request: Request) -> Caller:
        if request.credential_error is not None:
            raise request.credential_error
        header = request.headers.get("authorization")
        caller = self._authenticate.cached_caller(header)
        return await self._authenticate(header) if caller is None else caller

    async def require_application(self, application: str) -> None:
        await require_application(self._store, application)

    async def find_member_credential(self, request: Request) -> MemberCredential:
        """Returns the member's credential in a consumer group, made of the caller and its application keys.

        Raises:
            NotAuthenticated: A credential is not valid.
            NotAllowed: The request has no credential.
        """
        caller = await self.identify(request)
        self.require_credential(request, caller)
        return credential_of(self._authenticate.list_key_digests(request.headers.get("authorization", "")), caller)

    def find_former_credential(self, request: Request) -> MemberCredential | None:
        """Returns a member's credential, without rights, if the caller is cached, however old its entry; else None."""
        if self.known_caller(request) is None:
            return None
        return credential_of(self._authenticate.list_key_digests(request.headers.get("authorization", "")), ANYBODY)

    @staticmethod
    def require_credential(request: Request, caller: Caller) -> None:
        """Raises ``NotAllowed`` if the caller has no credential; called before a body is read that needs a right."""
        if caller.is_anonymous:
            raise _make_refusal(request, caller, "")

    def forget(self, request: Request) -> None:
        if (header := request.headers.get("authorization")) is not None:
            self._authenticate.forget(header)

    def known_caller(self, request: Request) -> Caller | None:
        """Returns the cached caller, even if its entry has expired; it gives no permission.

        Returns ``ANYBODY`` without a header, and None if the credential has not been read or is not valid.
        """
        header = request.headers.get("authorization")
        return ANYBODY if header is None else self._authenticate.known_caller(header)

    async def find(self, request: Request, match: dict[str, str]) -> Queue:
        """Returns the queue that the path names.

        Raises:
            ApplicationNotFound, QueueNotFound: The application or the queue does not exist.
            NotAuthenticated: A credential is not valid, and the application is private.
            NotAllowed: The application is private and the queue does not concern the caller, whether it exists or not.
        """
        application, name = match["app"], match["queue"]
        if application not in self._private:
            return await find_queue(self._store, application, name)
        caller = await self.identify(request)

        async def check(row: Queue) -> None:
            if not may_know(row, caller):
                raise _make_refusal(request, caller, explain_refusal(caller, application, "measure", name))

        try:
            access = QueueAccess(self._store, await find_queue(self._store, application, name), check)
            await access.require()
        except QueueNotFound:
            await check(Queue(application=application, name=name, uid=0, qid=0))
            raise
        return access.queue

    async def admit(
        self, request: Request, match: dict[str, str], action: Action, *, dead_letter: str | None = None
    ) -> QueueAccess:
        """Authorizes the caller for the queue that the path names. Reads nothing if caches have the queue and caller.

        Only fresh rows refuse: what the cached ones do not allow is checked again.

        Args:
            action: What the request does. A request that takes long is checked repeatedly.
            dead_letter: The queue's dead-letter queue after this request; see :meth:`require_dead_letter`.

        Raises:
            ApplicationNotFound, QueueNotFound: See :meth:`find`.
            NotAuthenticated: A credential is not valid.
            NotAllowed: The caller may not do this.
        """
        queue = self._store.catalogue.cached_queue(match["app"], match["queue"])
        caller = self._authenticate.cached_caller(request.headers.get("authorization"))
        check = partial(self._require_allowed, request, action, dead_letter)
        if (
            queue is not None
            and caller is not None
            and dead_letter is None
            and request.credential_error is None
            and is_allowed(queue, caller, action)
        ):
            return QueueAccess(self._store, queue, check)
        access = QueueAccess(self._store, await self.find(request, match), check)
        await access.require()
        return access

    async def admit_to_each(
        self, request: Request, application: str, names: Iterable[str]
    ) -> list[QueueAccess | NotFound | NotAllowed]:
        """Authorizes the caller to read several queues; an error that concerns one queue stands in its place."""
        results: list[QueueAccess | NotFound | NotAllowed] = []
        for name in names:
            try:
                results.append(await self.admit(request, {"app": application, "queue": name}, "read"))
            except (NotFound, NotAllowed) as error:
                results.append(error)
        return results

    async def _require_allowed(self, request: Request, action: Action, dead_letter: str | None, row: Queue) -> None:
        caller = await self.identify(request)
        if not is_allowed(row, caller, action):
            raise _make_refusal(request, caller, explain_refusal(caller, row.application, action, row.name))
        if dead_letter != row.dead_letter:
            await self.require_dead_letter(request, row.application, row.name, dead_letter)

    async def require_dead_letter(
        self, request: Request, application: str, name: str | None, dead_letter: str | None
    ) -> None:
        """Checks that the caller may have dead letters stored in a queue, whether it exists or not.

        Args:
            name: The source queue, or None if it has no name yet. Its own dead-letter queue is always allowed.
            dead_letter: The queue that receives the dead letters. If it is empty, nothing is checked.

        Raises:
            NotAuthenticated: A credential is not valid.
            NotAllowed: The caller may neither send to that queue nor create and change it.
        """
        if not dead_letter or (name and dead_letter == queue_for(name)):
            return
        caller = await self.identify(request)
        row = Queue(application=application, name=dead_letter, uid=0, qid=0)
        if not is_allowed(row, caller, "send") and not is_allowed(row, caller, "admin"):
            text = f"dead_letter names another queue. {explain_refusal(caller, application, 'send', dead_letter)}"
            raise _make_refusal(request, caller, text)

    async def patterns(self, request: Request, application: str, action: Action) -> Sequence[str]:
        """Returns patterns of the queues of an application on which the caller may do something; at least one.

        Raises:
            ApplicationNotFound: The application does not exist.
            NotAuthenticated: A credential is not valid.
            NotAllowed: The caller may do this on no queue of the application.
        """
        await self.require_application(application)
        caller = await self.identify(request)
        if not (patterns := caller.find_patterns(application, action)):
            raise _make_refusal(request, caller, explain_refusal(caller, application, action))
        return patterns

    async def make_name_test(self, request: Request, application: str, action: Action) -> Callable[[str], bool]:
        """Returns a predicate of queue names on which the caller may do something. Raises as :meth:`patterns`."""
        patterns = await self.patterns(request, application, action)
        return lambda name: any(matches(pattern, name) for pattern in patterns)

    async def make_creation_check(self, request: Request, application: str) -> Callable[[str], None]:
        """Returns a check that raises ``NotAllowed`` for names of queues that the caller may not create (``admin``).

        Raises as :meth:`patterns`.
        """
        patterns = await self.patterns(request, application, "admin")

        def check(name: str) -> None:
            if not any(matches(pattern, name) for pattern in patterns):
                raise NotAllowed(f"The credential creates only queues that match {', '.join(patterns)}.")

        return check

    async def require_consumer(
        self, request: Request, application: str, names: Sequence[str], shapes: Sequence[str]
    ) -> None:
        """Checks that the caller may consume queues as a member of a group.

        Only keys of the application and users with a role may: others would share groups with it, and see its members.

        Args:
            request: The request.
            names: Names of queues; the caller must be allowed to consume each of them.
            shapes: Shell patterns. For each action, each must be able to match a name that the caller's patterns match,
                judged by the text before the first wildcard.

        Raises:
            ApplicationNotFound: The application does not exist.
            QueueNotFound: A queue does not exist, and the caller's rights do not cover its name.
            NotAuthenticated: A credential is not valid.
            NotAllowed: The caller lacks ``read`` or ``claim``, or has no credential.
        """
        await self.require_application(application)
        caller = await self.identify(request)
        self.require_credential(request, caller)
        for action in CONSUMER_ACTIONS:
            begins = [pattern.partition("*")[0] for pattern in caller.find_patterns(application, action)]
            if not begins or not all(any(_may_match_prefix(shape, begin) for begin in begins) for shape in shapes):
                text = explain_refusal(caller, application, action)
                hint = "Keys of the application and users with a role join groups, for patterns within their rights."
                raise _make_refusal(request, caller, f"{hint} {text}")
        for name in names:
            try:
                for action in CONSUMER_ACTIONS:
                    await self.admit(request, {"app": application, "queue": name}, action)
            except QueueNotFound:
                row = Queue(application=application, name=name, uid=0, qid=0)
                if not all(is_allowed(row, caller, action) for action in CONSUMER_ACTIONS):
                    raise

    async def require_administrator(self, request: Request, application: str) -> None:
        if "*" not in await self.patterns(request, application, "admin"):
            raise NotAllowed("This needs admin for all queues of the application.")

    async def list_readable_names(
        self, request: Request, application: str, max_names: int, list_queues: QueueLister
    ) -> list[str]:
        """Returns the names of queues that the caller's grants let it read, exact names first.

        A name that a grant has in full is returned whether the queue exists or not; a pattern gives existing queues.
        Queues that name the caller only as a principal are left out: they are not indexed by principal.

        Raises:
            NotAuthenticated: A credential is not valid.
            NotAllowed: The request has no credential.
        """
        caller = await self.identify(request)
        self.require_credential(request, caller)
        names = dict.fromkeys(
            grant.queues
            for grant in caller.grants
            if isinstance(grant.queues, str) and grant.permits(application, "read")
        )
        if patterns := caller.find_patterns(application, "read"):
            queues, _ = await list_queues(application, start="", limit=max_names, patterns=patterns)
            names |= dict.fromkeys(queue.name for queue in queues)
        return list(names)[:max_names]

    async def find_reader_name(self, request: Request, application: str) -> str:
        """Returns the name under which the caller's read marks are stored.

        Raises:
            NotAuthenticated: A credential is not valid.
            NotAllowed: The caller is not a user or an application, or is unknown to this application.
        """
        caller = await self.identify(request)
        if (name := caller.reader_within(application)) is None:
            text = "Read marks are kept for users of the application, and for applications."
            raise _make_refusal(request, caller, text)
        return name

    async def list_rights(self, request: Request, application: str, name: str) -> list[Action]:
        """Returns the actions that the caller may do on a queue of this name, whether it exists or not.

        The principals and the type of a queue count only for callers that it concerns
        (:func:`queuey.model.rights.matches`). All others get no action, as if the queue did not exist.

        Raises:
            NotAuthenticated: A credential is not valid.
        """
        caller = await self.identify(request)
        try:
            row = await find_queue(self._store, application, name)
        except QueueNotFound:
            row = Queue(application=application, name=name, uid=0, qid=0)
        return [action for action in get_args(Action) if is_allowed(row, caller, action)]

    async def require_operator(self, request: Request) -> None:
        caller = await self.identify(request)
        if not any(grant.application is None for grant in caller.grants):
            raise _make_refusal(request, caller, "Only operators' keys list applications.")


def _may_match_prefix(shape: str, begin: str) -> bool:
    """Returns whether a shell pattern could match names that begin with ``begin``, judged before its first wildcard."""
    own = re.split(r"[*?\[]", shape, maxsplit=1)[0]
    return own.startswith(begin) or begin.startswith(own)


def _make_refusal(request: Request, caller: Caller, lacks: str) -> NotAllowed:
    if caller.is_anonymous:
        reason = (
            "The header Authorization has no scheme that is known here" if request.headers.get("authorization") else ""
        )
        lacks = f"{reason or 'This needs a credential'}. Send the header Authorization: Application KEY"
    return NotAllowed(lacks, anonymous=caller.is_anonymous)
