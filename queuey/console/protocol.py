"""The console as a protocol of its own: cookies for credentials, and errors as pages."""

from __future__ import annotations

from urllib.parse import quote, urlsplit

from queuey.access import Caller
from queuey.console import cookies, pages
from queuey.console.login import own_page
from queuey.console.sessions import SessionCallers
from queuey.errors import NotAuthenticated
from queuey.web.requests import Request, wants_events
from queuey.web.responses import STATUS_LINES, TEXT, Header, Response

MAX_FOLLOWING = 2000
"""Max characters of the address after the login. Proxies refuse longer request lines."""


class Console:
    """See :class:`~queuey.web.requests.Protocol`.

    Args:
        callers: Make a credential of a session's token.
    """

    def __init__(self, callers: SessionCallers) -> None:
        self._callers = callers

    def admit(self, request: Request) -> bool:
        """Gives a request for a page the credential of its session, and no other."""
        path = request.path
        if path != pages.ROOT and not path.startswith(f"{pages.ROOT}/"):
            return False
        request.facade = self
        request.headers.pop("authorization", None)
        token = cookies.read(request, cookies.SESSION)
        if token is not None:
            request.headers["authorization"] = self._callers.header(token)
        return True

    def error_response(self, request: Request, error: Exception, status: int, text: str) -> Response:
        """Answers with a page, or in plain text to a stream; who has not logged in is asked to."""
        if isinstance(error, NotAuthenticated):
            return self._to_login(request)
        headers: tuple[Header, ...] = ()
        if status in {429, 503}:
            headers = (("Retry-After", str(getattr(error, "retry_after", 1))),)
        if wants_events(request):
            return Response(status, text.encode(), TEXT, *pages.HEADERS, *headers)
        title = STATUS_LINES[status]
        if pages.is_part(request) and request.path.endswith("/messages"):
            # It takes the place of a table's last row, which says how far a scan is and leads on.
            address = f"{quote(request.path, safe='/')}?{request.query}"
            return pages.render(request, "error_row.html", title, *headers, status=status, text=text, address=address)
        return pages.render(request, "error.html", title, *headers, status=status, text=text)

    def _to_login(self, request: Request) -> Response:
        if pages.is_part(request):
            # A script that gets a redirect follows it, and would put the form into the page.
            return Response(401, b"", ("HX-Redirect", _login(_shown(request))), *pages.HEADERS)
        path = quote(request.path, safe="/")
        wanted = f"{path}?{request.query}" if request.query else path
        # A browser that follows a link of another site keeps its strict cookie to itself: the session may be valid.
        sent = cookies.read(request, cookies.SESSION) is not None
        dropped = (cookies.drop(request, cookies.SESSION),) if sent else ()
        return pages.redirect(_login(wanted if request.method == "GET" else pages.ROOT), *dropped)

    def application_of(self, caller: Caller, /) -> str:
        """Requests of a session count for the application of its key, whatever queue they show."""
        return ""


def _login(following: str) -> str:
    """Returns the address of the login form that leads to a page."""
    if following == pages.ROOT or len(following) > MAX_FOLLOWING:
        following = ""
    return pages.link("login", next=following)


def _shown(request: Request) -> str:
    """Returns the address of the page whose script sends the request."""
    try:
        address = urlsplit(request.headers.get("hx-current-url", ""))
    except ValueError:
        return pages.ROOT
    return own_page(f"{address.path}?{address.query}" if address.query else address.path)
