"""Views of logging in and out."""

from __future__ import annotations

import ipaddress
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING
from urllib.parse import unquote

from queuey.errors import NotAuthenticated
from queuey.service.sessions import TOKEN_BYTES, Sessions, UserLogin
from queuey.storage import Applications
from queuey.web.authorization import Authorization
from queuey.web.console import cookies, pages
from queuey.web.console.bounds import Bound
from queuey.web.console.sessions import form_defect, read_fields, read_form
from queuey.web.credentials.application_keys import ApplicationKeys, digest_of
from queuey.web.endpoint import Match
from queuey.web.gateway.rates import Rate
from queuey.web.requests import Request, read_query
from queuey.web.responses import Header, Response

if TYPE_CHECKING:
    from queuey.web.credentials.code_flow import Provider

ATTEMPTS = Rate(0.2, 20)
"""Wrong keys of an address that are answered: twenty at once, and one more every five seconds."""
LOGINS = Rate(0.02, 20)
"""Logins with one key: each writes to the store. Twenty at once, and one more every 50 seconds."""
_FIELDS = frozenset({"next"})


class LoginViews:
    """Views of ``/console/login`` and ``/console/logout``.

    Args:
        applications: Have the keys.
        sessions: Have who has logged in.
        authorization: Knows who asks.
        providers: At which users may log in.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        applications: Applications,
        sessions: Sessions,
        authorization: Authorization,
        providers: Sequence[Provider] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._keys = ApplicationKeys(applications)
        self._providers = providers
        self._sessions = sessions
        self._authorization = authorization
        self._of_address = Bound(ATTEMPTS, "logins of this address with wrong keys", clock)
        self._of_key = Bound(LOGINS, "logins of this key", clock)

    async def form(self, request: Request, match: Match) -> Response:
        """Shows the form."""
        following = read_query(request, _FIELDS).get("next", "")
        if request.headers.get("sec-fetch-site") == "cross-site":
            # Another site has led here, so the browser keeps its strict cookies to itself: a form made now would take
            # the place of one that is open. A page of ours gets them.
            return pages.render(
                request, "back.html", "Logging in", refresh=pages.link("login", next=own_page(following))
            )
        return self.page(request, following)

    def page(self, request: Request, following: str, *headers: Header, status: int = 200, error: str = "") -> Response:
        """Makes the form.

        Args:
            request: The one that is answered.
            following: The page to go on to.
            headers: Further headers.
            status: Of the answer.
            error: Why the last login has failed.
        """
        token = cookies.read(request, cookies.VISITOR) or secrets.token_urlsafe(TOKEN_BYTES)
        return pages.render(
            request,
            "login.html",
            "Log in",
            cookies.put(request, cookies.VISITOR, token, cookies.VISIT_SECONDS),
            *headers,
            status=status,
            providers=self._providers,
            following=own_page(following),
            token=cookies.form_token(token),
            error=error,
        )

    def log_in(self, request: Request, match: Match) -> Response:
        """Begins a session for the holder of a key, in the place of the browser's session before; blocks."""
        fields = read_fields(request)
        following = fields.get("next", "")
        if defect := form_defect(request, cookies.VISITOR, fields):
            if self.has_session(request):  # Another window has logged in.
                return pages.redirect(own_page(following))
            return self.page(request, following, status=403, error=f"{defect} Log in again.")
        digest = digest_of(fields.get("key", "").strip())
        try:
            ends = self._end_of(digest)
        except NotAuthenticated as error:
            self._of_address.take(counted_as(request.peer))
            return self.page(request, following, status=403, error=str(error))
        self._of_key.take(digest.hex())
        return self.begin(request, digest, following, until=ends)

    def begin(
        self, request: Request, holder: bytes | UserLogin, following: str, *, until: float | None = None
    ) -> Response:
        """Begins a session in the place of the browser's session before, and goes on to a page; blocks.

        Args:
            request: The one that is answered.
            holder: Who has logged in.
            following: The page.
            until: Seconds since 1970 when the session ends at the latest; None: as usual.
        """
        token, session = self._sessions.begin(holder, until=until)
        self._end(request)
        return pages.redirect(
            own_page(following),
            cookies.put(request, cookies.SESSION, token, max(1, int(session.expires - time.time()))),
            cookies.drop(request, cookies.VISITOR),
        )

    def _end_of(self, digest: bytes) -> float | None:
        """Returns when a key ends (seconds since 1970), None: never.

        Raises:
            NotAuthenticated: There is no such key, or it has ended.
        """
        expires = self._keys.find(digest).expires
        if expires is not None and expires <= time.time():
            raise NotAuthenticated("The key has expired.")
        return expires

    def log_out(self, request: Request, match: Match) -> Response:
        """Ends the session; blocks."""
        read_form(request, cookies.SESSION)
        self._end(request)
        return pages.redirect(pages.link("login"), cookies.drop(request, cookies.SESSION))

    def has_session(self, request: Request) -> bool:
        """Returns whether the browser has logged in."""
        with suppress(NotAuthenticated):
            return not self._authorization.caller(request).anonymous
        return False

    def _end(self, request: Request) -> None:
        """Ends the session whose cookie a request has, if there is one."""
        token = cookies.read(request, cookies.SESSION)
        if token is not None:
            self._sessions.end(token)
            self._authorization.forget(request)


def counted_as(address: str) -> str:
    """Returns what an address is counted as: one of IPv6 as its network of 64 bits, all of which one caller has."""
    try:
        found = ipaddress.IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    return found.exploded[:19] if found.ipv4_mapped is None else str(found.ipv4_mapped)


def own_page(address: str) -> str:
    """Returns an address if it is one of the console's pages, else the first page.

    Example:
        >>> own_page("/console/a/shop?from=x"), own_page("//example.org/"), own_page("/console/../v1")
        ('/console/a/shop?from=x', '/console', '/console')
    """
    path = address.partition("?")[0]
    plain = address.isascii() and address.isprintable() and not {"\\", " ", "#"} & set(address)
    inside = path in {pages.ROOT, f"{pages.ROOT}/health"} or path.startswith(f"{pages.ROOT}/a/")
    # Browsers resolve ".." also where it is percent-encoded.
    stays = not {".", ".."} & set(unquote(path).split("/"))
    return address if plain and inside and stays else pages.ROOT
