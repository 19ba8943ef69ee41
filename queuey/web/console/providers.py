"""Views of the login at an OpenID provider: the way there, and the way back."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from queuey.errors import InvalidToken, IssuerUnavailable, TooManyRequests
from queuey.web.console import cookies, pages
from queuey.web.console.bounds import Bound
from queuey.web.console.login import ATTEMPTS, LOGINS, LoginViews, counted_as, own_page
from queuey.web.endpoint import Match
from queuey.web.errors import NoSuchResource
from queuey.web.gateway.rates import Rate
from queuey.web.requests import Request, parse_form, read_query
from queuey.web.responses import Response

if TYPE_CHECKING:
    from queuey.web.credentials.code_flow import Attempt, Provider

EXCHANGES = Rate(5, 100)
"""Codes that are exchanged with one provider, whoever comes with them."""
MAX_FOLLOWING = 500
"""Characters of a page to go on to: it is part of the address of the provider."""
_ANSWER = frozenset({"code", "state", "iss", "error"})
"""Fields of an answer that mean something here. Providers send more."""
_AGAIN = "again"


class ProviderViews:
    """Views of ``/console/login/{provider}`` and ``/console/login/{provider}/back``.

    Args:
        login: Shows the form, and begins sessions.
        providers: At which users may log in.
        clock: Monotonic seconds.
    """

    def __init__(
        self, login: LoginViews, providers: Sequence[Provider], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._login = login
        self._providers = {provider.tag: provider for provider in providers}
        self._of_address = Bound(ATTEMPTS, "logins of this address that have failed", clock)
        self._of_provider = Bound(EXCHANGES, "logins at this provider", clock)
        self._of_user = Bound(LOGINS, "logins of this user", clock)

    async def go(self, request: Request, match: Match) -> Response:
        """Sends the browser to the provider."""
        return await request.in_thread(partial(self._go, request, self._find(match)))

    async def come_back(self, request: Request, match: Match) -> Response:
        """Logs in the user with whom the browser comes back."""
        provider = self._find(match)
        answer = parse_form(request.query, "query")
        given = {name: answer[name] for name in sorted(_ANSWER & answer.keys())}
        if _AGAIN not in answer:
            # A browser that another site has sent here keeps its strict cookies to itself. A page of ours gets them.
            address = pages.link("login", provider.tag, "back", **given, again=1)
            return pages.render(request, "back.html", "Logging in", refresh=address)
        return await request.in_thread(partial(self._come_back, request, provider, given))

    def _find(self, match: Match) -> Provider:
        provider = self._providers.get(match["provider"])
        if provider is None:
            raise NoSuchResource("There is no login by such a provider.")
        return provider

    def _go(self, request: Request, provider: Provider) -> Response:
        following = own_page(read_query(request, frozenset({"next"})).get("next", ""))
        visitor = cookies.read(request, cookies.VISITOR)
        if visitor is None:  # A link of another site, or an old page.
            return self._login.page(request, following)
        kept = following if following != pages.ROOT and len(following) <= MAX_FOLLOWING else ""
        try:
            return pages.redirect(provider.address(provider.begin(visitor, kept), _back(request, provider)))
        except IssuerUnavailable as error:
            return self._failed(request, following, error)

    def _come_back(self, request: Request, provider: Provider, answer: dict[str, str]) -> Response:
        visitor = cookies.read(request, cookies.VISITOR)
        attempt = None if visitor is None else provider.resume(visitor, answer.get("state", ""))
        if attempt is None:
            if self._login.has_session(request):  # The page was loaded again, or another window has logged in.
                return pages.redirect(pages.ROOT)
            text = "This login was not begun by this browser, or it has taken more than an hour. Log in again."
            return self._login.page(request, "", status=403, error=text)
        try:
            return self._log_in(request, provider, attempt, answer)
        except (InvalidToken, IssuerUnavailable, TooManyRequests) as error:
            return self._failed(request, attempt.following, error)

    def _log_in(self, request: Request, provider: Provider, attempt: Attempt, answer: dict[str, str]) -> Response:
        address = counted_as(request.peer)
        self._of_address.check(address)
        self._of_provider.take(provider.tag)
        try:
            user = provider.finish(attempt, answer, _back(request, provider))
            self._of_user.take(user.users[0][1])
        except (InvalidToken, TooManyRequests):
            self._of_address.take(address)
            raise
        return self._login.begin(request, user, attempt.following)

    def _failed(
        self, request: Request, following: str, error: InvalidToken | IssuerUnavailable | TooManyRequests
    ) -> Response:
        if isinstance(error, InvalidToken):
            return self._login.page(request, following, status=403, error=str(error))
        status = 429 if isinstance(error, TooManyRequests) else 503
        wait = ("Retry-After", str(math.ceil(error.retry_after)))
        return self._login.page(request, following, wait, status=status, error=str(error))


def _back(request: Request, provider: Provider) -> str:
    """Returns where the browser comes back to: one address for each provider, which is registered there."""
    return cookies.origin_of(request) + pages.link("login", provider.tag, "back")
