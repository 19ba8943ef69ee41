"""The console as a protocol of its own: cookies for credentials, and errors as pages."""

from __future__ import annotations

from urllib.parse import quote

from queuey.access import Caller
from queuey.errors import NotAuthenticated
from queuey.web.console import cookies, pages
from queuey.web.console.sessions import SessionCallers
from queuey.web.requests import Request
from queuey.web.responses import STATUS_LINES, Header, Response

LOGIN = pages.link("login")


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
        """Answers with a page; who has not logged in is asked to."""
        if isinstance(error, NotAuthenticated):
            return self._to_login(request)
        headers: tuple[Header, ...] = ()
        if status in {429, 503}:
            headers = (("Retry-After", str(getattr(error, "retry_after", 1))),)
        title = STATUS_LINES[status]
        return pages.render(request, "error.html", *headers, status=status, title=title, text=text)

    def _to_login(self, request: Request) -> Response:
        if pages.is_part(request):
            # A script that gets a redirect follows it, and would put the form into the page.
            return Response(401, b"", ("HX-Redirect", LOGIN), *pages.HEADERS)
        path = quote(request.path, safe="/")
        wanted = f"{path}?{request.query}" if request.query else path
        following = wanted if request.method == "GET" and wanted != pages.ROOT else ""
        return pages.redirect(pages.link("login", next=following), cookies.drop(request, cookies.SESSION))

    def application_of(self, caller: Caller, /) -> str:
        """Requests of a session count for the application of its key, whatever queue they show."""
        return ""
