"""Views for logging in, with a key or at an OpenID provider, and for logging out."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import unquote

from queuey.access.authorization import Authorization
from queuey.access.credentials.readers import ApplicationKeys, digest_of
from queuey.access.issued_credentials import TOKEN_BYTES, Sessions, UserLogin
from queuey.console import cookies, pages
from queuey.console.sessions import SessionCredentials, find_form_defect, name_of_key, read_fields, read_form
from queuey.model.errors import InvalidToken, IssuerUnavailable, NotAuthenticated, TooManyRequests
from queuey.operations.audit_log import AuditLog
from queuey.storage import Applications
from queuey.web.admission.rates import NamedRateLimiter, Rate
from queuey.web.admission.scheduling import rate_limit_name
from queuey.web.endpoint import Match
from queuey.web.errors import NoSuchResource
from queuey.web.requests import Request, parse_form, read_query
from queuey.web.responses import Header, Response

if TYPE_CHECKING:
    from queuey.access.credentials.code_flow import LoginAttempt, Provider

MAX_ATTEMPT_RATE = Rate(0.2, 20)
"""Limit of wrong keys of an address, and of wrong codes of a browser: twenty at once, then one every 5 s."""
MAX_LOGIN_RATE = Rate(0.02, 20)
"""Limit of logins with one key, as each writes to the store: twenty at once, then one every 50 s."""
MAX_EXCHANGE_RATE = Rate(5, 100)
"""Limit of codes that are exchanged with one provider, from all browsers together."""
MAX_WRONG_CODE_RATE = Rate(2.5, 50)
"""Limit of wrong codes of an address, behind which may be many people: half of ``MAX_EXCHANGE_RATE``."""
MAX_RETURN_TO = 500
"""Max characters of the address after the login, which becomes part of the provider's address."""
_ANSWER_FIELDS = frozenset({"code", "state", "iss", "error"})
"""Fields of a provider's answer that are used here. Providers send more."""
_AGAIN = "again"
_FIELDS = frozenset({"next"})


class LoginViews:
    """Views of ``/console/login`` and ``/console/logout``.

    Args:
        applications: The store of keys.
        sessions: The store of sessions.
        authorization: Identifies callers.
        providers: The providers at which users may log in.
    """

    def __init__(
        self,
        applications: Applications,
        sessions: Sessions,
        authorization: Authorization,
        providers: Sequence[Provider] = (),
    ) -> None:
        self._keys = ApplicationKeys(applications)
        self._providers = providers
        self._sessions = sessions
        self._authorization = authorization
        self._of_address = NamedRateLimiter(MAX_ATTEMPT_RATE, "logins of this address with wrong keys")
        self._of_key = NamedRateLimiter(MAX_LOGIN_RATE, "logins of this key")

    async def show_form(self, request: Request, match: Match) -> Response:
        """Shows the login form; sends a request from another site through our own page first, to get its cookies."""
        return_to = read_query(request, _FIELDS).get("next", "")
        if request.headers.get("sec-fetch-site") == "cross-site":
            # A link of another site leads here, so the browser does not send its strict cookies, and a new form would
            # invalidate an open one. Redirect through our own page, which gets the cookies.
            return pages.render(
                request, "back.html", "Logging in", refresh=pages.link("login", next=own_page(return_to))
            )
        return self.render_form(request, return_to)

    def render_form(
        self, request: Request, return_to: str, *headers: Header, status: int = 200, error: str = ""
    ) -> Response:
        """Returns the login form, and a visitor cookie, to which the form is bound. Keeps the browser's own, if valid.

        Args:
            request: The request to answer.
            return_to: The page to show after the login; the first page unless it is one of the console.
            headers: Further headers.
            status: HTTP status of the response.
            error: Why the last login failed.
        """
        token = cookies.read(request, cookies.VISITOR_COOKIE) or secrets.token_urlsafe(TOKEN_BYTES)
        return pages.render(
            request,
            "login.html",
            "Log in",
            cookies.make_cookie(request, cookies.VISITOR_COOKIE, token, cookies.LOGIN_FORM_TIMEOUT),
            *headers,
            status=status,
            providers=self._providers,
            return_to=own_page(return_to),
            token=cookies.form_token(token),
            error=error,
        )

    async def log_in(self, request: Request, match: Match) -> Response:
        """Begins a session for a key, and ends the browser's previous session.

        Shows the form again, with 403, if the key is not valid or the form is not of this browser; with such a form, a
        browser that has a session gets the page instead. Raises TooManyRequests: wrong keys are limited by address,
        logins by key.
        """
        fields = read_fields(request)
        return_to = fields.get("next", "")
        if defect := find_form_defect(request, cookies.VISITOR_COOKIE, fields):
            if await self.has_session(request):  # Another window has logged in.
                return pages.redirect(own_page(return_to))
            return self.render_form(request, return_to, status=403, error=f"{defect} Log in again.")
        digest = digest_of(fields.get("key", "").strip())
        try:
            ends = await self.find_key_expiry(digest)
        except NotAuthenticated as error:
            self._of_address.take(rate_limit_name(request.address))
            return self.render_form(request, return_to, status=403, error=str(error))
        self._of_key.take(digest.hex())
        return await self.begin_session(request, digest, return_to, until=ends)

    async def begin_session(
        self, request: Request, holder: bytes | UserLogin, return_to: str, *, until: float | None = None
    ) -> Response:
        """Begins a session, ends the browser's previous session, and redirects to a page.

        Sets the session's cookie, and expires the visitor's.

        Args:
            request: The request to answer.
            holder: The user or key that has logged in.
            return_to: The page; the first page unless it is one of the console.
            until: Latest end of the session, in seconds since 1970; None for the default.
        """
        token, session = await self._sessions.begin(holder, until=until)
        await self._end_session(request)
        return pages.redirect(
            own_page(return_to),
            cookies.make_cookie(request, cookies.SESSION_COOKIE, token, max(1, int(session.expires - time.time()))),
            cookies.make_expired_cookie(request, cookies.VISITOR_COOKIE),
        )

    async def find_key_expiry(self, digest: bytes) -> float | None:
        """Returns when a key expires, in seconds since 1970, or None if it never does.

        Raises:
            NotAuthenticated: The key does not exist, or has expired.
        """
        expires = (await self._keys.find(digest)).expires
        if expires is not None and expires <= time.time():
            raise NotAuthenticated("The key has expired.")
        return expires

    async def log_out(self, request: Request, match: Match) -> Response:
        """Ends the session, drops its cookie, and redirects to the login form.

        Refuses a form that is not of this session.
        """
        read_form(request, cookies.SESSION_COOKIE)
        await self._end_session(request)
        return pages.redirect(pages.link("login"), cookies.make_expired_cookie(request, cookies.SESSION_COOKIE))

    async def has_session(self, request: Request) -> bool:
        with suppress(NotAuthenticated):
            return not (await self._authorization.identify(request)).is_anonymous
        return False

    async def _end_session(self, request: Request) -> None:
        token = cookies.read(request, cookies.SESSION_COOKIE)
        if token is not None:
            await self._sessions.end(token)
            self._authorization.forget(request)


class LinkViews:
    """Views of ``/console/login/once/{token}``, a link that logs in once, and ``/console/login/once``, its form.

    Only the form uses up the link, because browsers and mail programs fetch addresses in advance.

    Args:
        login: Begins sessions.
        callers: The callers of sessions, to find keys.
        sessions: The store of links.
        audit: The audit log, which records logins by link.
    """

    def __init__(self, login: LoginViews, callers: SessionCredentials, sessions: Sessions, audit: AuditLog) -> None:
        self._login = login
        self._callers = callers
        self._sessions = sessions
        self._audit = audit
        self._of_address = NamedRateLimiter(MAX_ATTEMPT_RATE, "logins of this address with wrong links")

    async def show(self, request: Request, match: Match) -> Response:
        """Shows the button for any token, so that a GET request does not tell whether a token is valid."""
        return pages.render(request, "once.html", "Log in", ("Referrer-Policy", "no-referrer"), token=match["token"])

    async def log_in(self, request: Request, match: Match) -> Response:
        """Uses up the link, begins a session of its key, and records the login in the audit log.

        Shows the login form, with 403, if the link is not valid or its key has expired or was revoked. Raises
        TooManyRequests after too many such attempts of the address.
        """
        token = read_fields(request).get("token", "")
        address = rate_limit_name(request.address)
        self._of_address.require_token(address)
        try:
            digest = await self._sessions.redeem(token)
            ends = await self._login.find_key_expiry(digest)
            key = await self._callers.find_key(digest)
        except NotAuthenticated as error:
            self._of_address.take(address)
            text = f"{error} Start queuey serve again for a new link, or log in with the key."
            return self._login.render_form(request, "", status=403, error=text)
        form, who = secrets.token_hex(16), name_of_key(key)
        entry, sent, _ = await self._audit.begin(
            key.application, form, content=b"", act="log-in", who=who, queue="", details={}
        )
        response = await self._login.begin_session(request, digest, "", until=ends)
        await self._audit.end(
            key.application, sent.entry, entry, "done", "Logged in by the link that queuey serve printed."
        )
        return response


class ProviderViews:
    """Views of ``/console/login/{provider}`` and ``/console/login/{provider}/back``.

    Args:
        login: Shows the form, and begins sessions.
        providers: The providers at which users may log in.
    """

    def __init__(self, login: LoginViews, providers: Sequence[Provider]) -> None:
        self._login = login
        self._providers = {provider.tag: provider for provider in providers}
        self._of_browser = NamedRateLimiter(MAX_ATTEMPT_RATE, "logins of this browser that have failed")
        self._of_address = NamedRateLimiter(MAX_WRONG_CODE_RATE, "logins of this address that have failed")
        self._of_provider = NamedRateLimiter(MAX_EXCHANGE_RATE, "logins at this provider")
        self._of_user = NamedRateLimiter(MAX_LOGIN_RATE, "logins of this user")

    async def redirect_to_provider(self, request: Request, match: Match) -> Response:
        return await request.in_thread(partial(self._redirect_to_provider, request, self._find_provider(match)))

    async def finish_login(self, request: Request, match: Match) -> Response:
        """Begins a session after a login at the provider; shows the login form with an error if the login failed.

        The provider's redirect is first sent through our own page, because a browser keeps strict cookies from another
        site's.
        """
        provider = self._find_provider(match)
        answer = parse_form(request.query, "query")
        fields = {name: answer[name] for name in sorted(_ANSWER_FIELDS & answer.keys())}
        if _AGAIN not in answer:
            # The redirect came from another site, so the browser did not send its strict cookies. Our own page gets
            # them.
            address = pages.link("login", provider.tag, "back", **fields, again=1)
            return pages.render(request, "back.html", "Logging in", refresh=address)
        return await self._finish_login(request, provider, fields)

    def _find_provider(self, match: Match) -> Provider:
        provider = self._providers.get(match["provider"])
        if provider is None:
            raise NoSuchResource("There is no login provider of this name.")
        return provider

    def _redirect_to_provider(self, request: Request, provider: Provider) -> Response:
        """Redirects to the provider, or shows the login form to a browser without a visitor cookie.

        Also shows it, with 503, if the provider cannot be reached. A longer page address than :data:`MAX_RETURN_TO` is
        forgotten.
        """
        return_to = own_page(read_query(request, _FIELDS).get("next", ""))
        visitor = cookies.read(request, cookies.VISITOR_COOKIE)
        if visitor is None:  # The request came from a link of another site, or from an old page.
            return self._login.render_form(request, return_to)
        kept = return_to if return_to != pages.ROOT and len(return_to) <= MAX_RETURN_TO else ""
        try:
            return pages.redirect(
                provider.make_login_url(provider.begin(visitor, kept), _callback_address(request, provider))
            )
        except IssuerUnavailable as error:
            return self._failure_page(request, return_to, error)

    async def _finish_login(self, request: Request, provider: Provider, answer: dict[str, str]) -> Response:
        """Begins a session.

        Shows the login form with an error if the login fails, or if this browser did not begin it; then a browser that
        has a session gets the first page instead.
        """
        visitor = cookies.read(request, cookies.VISITOR_COOKIE)
        attempt = None if visitor is None else provider.resume(visitor, answer.get("state", ""))
        if attempt is None:
            if await self._login.has_session(request):  # The page was loaded again, or another window has logged in.
                return pages.redirect(pages.ROOT)
            text = "This login was not begun by this browser, or it took more than an hour. Log in again."
            return self._login.render_form(request, "", status=403, error=text)
        try:
            return await self._log_in(request, provider, attempt, answer)
        except (InvalidToken, IssuerUnavailable, TooManyRequests) as error:
            return self._failure_page(request, attempt.return_to, error)

    async def _log_in(
        self, request: Request, provider: Provider, attempt: LoginAttempt, answer: dict[str, str]
    ) -> Response:
        """Exchanges the code for the user's rights, and begins a session.

        A failed attempt counts for the limits of browser and address, unless the provider could not be reached.

        Raises:
            InvalidToken, IssuerUnavailable: The provider's answer is not valid, or the provider cannot be reached.
            TooManyRequests: A limit of browser, address, provider or user is exceeded.
        """
        browser, address = cookies.read(request, cookies.VISITOR_COOKIE) or "", rate_limit_name(request.address)
        self._of_browser.require_token(browser)
        self._of_address.require_token(address)
        self._of_provider.take(provider.tag)
        try:
            finish = partial(provider.finish, attempt, answer, _callback_address(request, provider))
            user = await request.in_thread(finish)
            self._of_user.take(user.users[0][1])
        except (InvalidToken, TooManyRequests):
            self._of_browser.take(browser)
            self._of_address.take(address)
            raise
        return await self._login.begin_session(request, user, attempt.return_to)

    def _failure_page(
        self, request: Request, return_to: str, error: InvalidToken | IssuerUnavailable | TooManyRequests
    ) -> Response:
        """Shows the login form with 403 for an invalid answer of the provider, else 429 or 503 with Retry-After."""
        if isinstance(error, InvalidToken):
            return self._login.render_form(request, return_to, status=403, error=str(error))
        status = 429 if isinstance(error, TooManyRequests) else 503
        wait = ("Retry-After", str(math.ceil(error.retry_after)))
        return self._login.render_form(request, return_to, wait, status=status, error=str(error))


def own_page(address: str) -> str:
    """Returns an address if it is a page of the console, else the address of the first page.

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


def _callback_address(request: Request, provider: Provider) -> str:
    return cookies.origin_of(request) + pages.link("login", provider.tag, "back")
