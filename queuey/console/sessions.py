"""Callers of pages: the credential of a session, rendering for a caller, and checks of forms."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, get_args

import msgspec

from queuey.access.authorization import Authorization
from queuey.access.credentials.readers import ApplicationKeys, Identity
from queuey.access.credentials.user_identity import identity_of_login
from queuey.access.issued_credentials import LoginSession, Sessions, UserLogin
from queuey.access.queue_access import QueueAccess
from queuey.app.service import Service
from queuey.console import cookies, pages
from queuey.model.errors import InvalidRequest, NoCredential, NotAllowed, NotAuthenticated
from queuey.model.messages import Key, Queue
from queuey.model.rights import Action, Caller, is_allowed, matches
from queuey.operations.queue_activity import History
from queuey.schedules.views import ScheduleSaver
from queuey.settings import Users
from queuey.storage import Applications
from queuey.web.endpoint import Match, View
from queuey.web.requests import Request, parse_form, read_body, read_query
from queuey.web.responses import Response

MAX_FORM = 8 * 1024
"""Max bytes of a form, whose longest field is a key or an address."""
MAX_FIELD = 1000
"""Max characters of a field that :meth:`PageRequest.get` returns."""


class SessionCredentials:
    """Reads the credentials of sessions. See :class:`~queuey.access.credentials.readers.CredentialReader`.

    This process makes them of cookies; a caller cannot send such a credential in a header.
    """

    scheme = "Session"
    max_cache_seconds = ApplicationKeys.max_cache_seconds

    def __init__(self, applications: Applications, sessions: Sessions, users: Users) -> None:
        self._applications = applications
        self._keys = ApplicationKeys(applications)
        self._sessions = sessions
        self._users = users
        self._mark = secrets.token_hex(8)

    def make_header(self, token: str) -> str:
        return f"{self.scheme} {self._mark}{token}"

    async def read(self, credential: str, now: float) -> Identity:
        """Finds the rights of a session's key, which may have been revoked, or the present rights of its user.

        They end with the session, or with the key if that is sooner.

        Raises:
            NotAuthenticated: The credential is not of this process, or its session or key is gone.
        """
        mark, token = credential[: len(self._mark)], credential[len(self._mark) :]
        if not secrets.compare_digest(mark.encode(), self._mark.encode()):
            raise NotAuthenticated("Invalid credential: only the console creates credentials of this scheme.")
        session = await self._sessions.find(token)
        if isinstance(session.holder, UserLogin):
            return identity_of_login(self._users, session.holder, session.expires)
        identity = await self._keys.find(session.holder)
        expires = session.expires if identity.expires is None else min(session.expires, identity.expires)
        return msgspec.structs.replace(identity, expires=expires)

    async def find_holder_name(self, request: Request) -> str:
        """Returns who acts in a session: the name of its first user, or the id, application and note of its key."""
        holder = (await self._session(request)).holder
        if isinstance(holder, UserLogin):
            return holder.users[0][1]
        return name_of_key(await self.find_key(holder))

    async def find_rights_end(self, request: Request) -> float | None:
        """Returns when the rights of a session's key or user end, in seconds since 1970, or None if they do not.

        The rights of a user end with the session.
        """
        session = await self._session(request)
        if isinstance(session.holder, UserLogin):
            return session.expires
        return (await self.find_key(session.holder)).expires

    async def _session(self, request: Request) -> LoginSession:
        return await self._sessions.find(cookies.read(request, cookies.SESSION_COOKIE) or "")

    async def find_key(self, digest: bytes) -> Key:
        """Returns the key of a digest.

        Raises:
            NotAuthenticated: The key was revoked.
        """
        key = await self._applications.find_key(digest)
        if key is None:
            raise NotAuthenticated("The key of this session was revoked.")
        return key


def name_of_key(key: Key) -> str:
    return f"key {key.id} of {key.application}{f' ({key.note})' if key.note else ''}"


class PageRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A page request of a caller who has logged in.

    Attributes:
        queue_acts: All acts on queues; see :mod:`queuey.console.acts`.
        match: The parts of the path.
        given: The fields of the query or of a form.
    """

    service: Service
    authorization: Authorization
    callers: SessionCredentials
    schedules: ScheduleSaver
    history: History
    queue_acts: Sequence[Any]
    request: Request
    match: Match
    caller: Caller
    given: Mapping[str, str]

    @property
    def application(self) -> str:
        return self.match["app"]

    @property
    def name(self) -> str:
        return self.match.get("queue", "")

    async def queue(self, name: str = "") -> Queue:
        """Returns the queue of the request, or another queue of the application. Needs no right.

        Raises:
            NotFound: The queue does not exist.
            NotAllowed: The application is private, and the queue does not concern the caller.
        """
        return await self.authorization.find(self.request, self._queue_match(name))

    async def enter(self, action: Action, name: str = "", *, dead_letter: str | None = None) -> QueueAccess:
        """Authorizes the caller for the queue of the request, or for another queue of the application.

        Args:
            action: The right that the caller needs.
            name: The other queue; blank for the request's.
            dead_letter: The queue's dead-letter queue after the request. If it is another than now, the caller needs
                ``send`` or ``admin`` with it.

        Raises:
            NotFound: The queue does not exist.
            NotAllowed: The caller does not have the right.
        """
        return await self.authorization.admit(self.request, self._queue_match(name), action, dead_letter=dead_letter)

    def _queue_match(self, name: str) -> Match:
        return {"app": self.application, "queue": name or self.name}

    def rights(self, queue: Queue) -> list[Action]:
        """Returns what the caller may do with a queue: nothing if its principals and type do not concern the caller."""
        return [action for action in get_args(Action) if is_allowed(queue, self.caller, action)]

    def may(self, action: Action, name: str) -> bool:
        return any(matches(pattern, name) for pattern in self.caller.find_patterns(self.application, action))

    async def patterns(self, action: Action) -> Sequence[str]:
        """Returns name patterns of the queues with which the caller has a right.

        Raises:
            ApplicationNotFound: The application does not exist.
            NotAllowed: The caller has the right with no queue.
        """
        return await self.authorization.patterns(self.request, self.application, action)

    async def make_name_test(self, action: Action) -> Callable[[str], bool]:
        """Returns a test whether the caller has a right with a queue, by its name alone. Raises as :meth:`patterns`."""
        return await self.authorization.make_name_test(self.request, self.application, action)

    def get(self, name: str) -> str:
        """Returns a field of the query or form without surrounding white space; blank if it is missing.

        Raises:
            InvalidRequest: The field is too long.
        """
        text = self.given.get(name, "").strip()
        if len(text) > MAX_FIELD:
            raise InvalidRequest({name: f"Longer than {MAX_FIELD} characters"})
        return text

    async def render(self, template: str, title: str, of: str = "", *, status: int = 200, **values: object) -> Response:
        values = {"application": self.match.get("app", ""), "name": self.name} | values
        render = partial(pages.render, self.request, template, title, of=of, status=status, caller=self.caller)
        return await self.request.in_thread(partial(render, **values), computes=True)


class PageRequestFactory(NamedTuple):
    """Makes page requests for callers who have logged in, and the views that receive them."""

    service: Service
    authorization: Authorization
    callers: SessionCredentials
    schedules: ScheduleSaver
    history: History
    queue_acts: Sequence[Any]

    async def identify(self, request: Request, match: Match, given: Mapping[str, str]) -> PageRequest:
        """Identifies the caller of a request.

        Raises:
            NotAuthenticated: The caller has not logged in, or the session has ended.
        """
        caller = await self.authorization.identify(request)
        if caller.is_anonymous:
            raise NoCredential("Log in to see this page.")
        return PageRequest(**self._asdict(), request=request, match=match, caller=caller, given=given)

    def make_view(
        self,
        answer: Callable[[PageRequest], Awaitable[Response]],
        fields: frozenset[str] = frozenset(),
        *,
        reserves: bool = False,
    ) -> View:
        """Returns a view that calls ``answer`` with the caller.

        Other query fields than ``fields`` cause a warning. With ``reserves``, memory for a page of messages is reserved
        first.

        The view raises NotAuthenticated without a session.
        """

        async def show(request: Request, match: Match) -> Response:
            page_request = await self.identify(request, match, read_query(request, fields))
            if reserves:
                await request.share.reserve(self.service.limits.page_bytes)
            return await answer(page_request)

        return View(show, reads_query=bool(fields), ends_with_client=True)


def read_form(request: Request, cookie: str, max_bytes: int = MAX_FORM) -> dict[str, str]:
    """Returns the fields of a form, if a page of the console sent it.

    Args:
        request: A POST request.
        cookie: The name of the cookie that the form is bound to.
        max_bytes: Max bytes of the form.

    Raises:
        NotAllowed: It is not certain that a page of the console sent the form.
        InvalidRequest: The body is not a form, or is too long.
    """
    fields = read_fields(request, max_bytes)
    if defect := find_form_defect(request, cookie, fields):
        raise NotAllowed(f"{defect} Open the page again.")
    return fields


def read_fields(request: Request, max_bytes: int = MAX_FORM) -> dict[str, str]:
    """Returns the fields of a form without checking its token.

    Raises:
        NotAllowed: A page of another site sent the form.
        InvalidRequest: The body is not a form, or is too long.
    """
    if not _is_of_this_site(request):
        raise NotAllowed(
            "The form was sent by a page of another site. If there is a proxy in front of the service, let it pass "
            "the header Host unchanged."
        )
    return parse_form(read_body(request, max_bytes).decode("latin-1"), "body")


def find_form_defect(request: Request, cookie: str, fields: Mapping[str, str]) -> str:
    """Returns why a form does not belong to a cookie, or an empty text if it does."""
    token = cookies.read(request, cookie)
    if token is None:
        return (
            "The browser did not send the cookie of this form: it is an hour old, or cookies are off, or the console "
            "is reached over http from another machine and needs https."
        )
    if not hmac.compare_digest(cookies.form_token(token).encode(), fields.get("form_token", "").encode()):
        return "The form belongs to another session."
    return ""


def _is_of_this_site(request: Request) -> bool:
    """Returns whether a page of this host sent the request, by the browser's headers; True without them.

    False for any Sec-Fetch-Site but ``same-origin``, so also for ``same-site``. Origin ``null`` needs that header. Port
    and scheme are not compared, because a proxy may change them.
    """
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if site not in {None, "same-origin"}:
        return False
    if origin == "null":  # The page sends no referrer, such as the page of a link that logs in.
        return site is not None
    return origin is None or cookies.name_of(origin.partition("://")[2]) == cookies.host_of(request)
