"""The console's resources, and its protocol: cookies as credentials, and errors as pages."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from queuey import __version__
from queuey.access.authorization import Authorization
from queuey.app.service import App, Service
from queuey.console import applications, cookies, messages, overview, pages, queue
from queuey.console.acts import QUEUE_ACTS, ActViews
from queuey.console.acts.act import Act
from queuey.console.acts.operation_act import make_acts
from queuey.console.charts import ChartView, sample_depths
from queuey.console.groups import GroupPages
from queuey.console.login import LinkViews, LoginViews, ProviderViews, own_page
from queuey.console.overview import OverviewPages
from queuey.console.sessions import PageRequest, PageRequestFactory, SessionCredentials
from queuey.model.errors import NotAuthenticated, StoreUnavailable
from queuey.model.messages import Finding
from queuey.model.rights import Caller
from queuey.operations.lag_metrics import Collection
from queuey.operations.queue_activity import History
from queuey.schedules.views import ScheduleSaver
from queuey.settings import Include, Users
from queuey.web.endpoint import Handler, Match, View
from queuey.web.errors import make_path_error
from queuey.web.requests import Request, wants_events
from queuey.web.responses import STATUS_LINES, TEXT, Header, Response

if TYPE_CHECKING:
    from queuey.access.credentials.code_flow import Provider

APP = "/console/a/{app}"
QUEUE = APP + "/{queue:[^/_][^/]*}"
Resource = tuple[str, str, dict[str, View | Handler]]
MAX_RETURN_TO = 2000
"""Max characters of the address to show after the login, as proxies refuse long request lines."""

MAX_FINDINGS_AGE = 30.0
"""Max age of findings that are shown again, in seconds."""
FINDINGS_TIMEOUT = 1.0
"""Timeout for the findings on a page with other contents, in seconds."""
Examine = Callable[[], list[Finding]]


def make_resources(
    service: Service,
    authorization: Authorization,
    examine: Examine,
    history: History,
    callers: SessionCredentials,
    queue_acts: Sequence[Act],
    providers: Sequence[Provider] = (),
    *,
    is_local: bool = False,
) -> list[Resource]:
    """Returns the name, pattern and views of every page; with ``is_local`` also of links that log in once."""
    saver = ScheduleSaver(authorization, service.limits, service.schedules, service.messages)
    page_requests = PageRequestFactory(service, authorization, callers, saver, history, queue_acts)
    page, acts, charts = page_requests.make_view, ActViews(page_requests), ChartView(service, authorization, history)
    groups, health = GroupPages(page_requests), HealthView(page_requests, examine)
    figures = OverviewPages(page_requests, groups, health.find_visible_findings)
    doing: dict[str, View | Handler] = {"GET": View(acts.show, reads_query=True), "POST": acts.do}
    login = LoginViews(service.store.applications, service.sessions, authorization, providers)
    logins = ProviderViews(login, providers)
    links = LinkViews(login, callers, service.sessions, service.audit)
    once: list[Resource] = [
        ("console.once", "/console/login/once", {"POST": links.log_in}),
        ("console.link", "/console/login/once/{token}", {"GET": View(links.show)}),
    ]
    return [
        *(once if is_local else ()),
        ("console.applications", "/console{_:/?}", {"GET": page(applications.show_applications, applications.FIELDS)}),
        ("console.login", "/console/login", {"GET": View(login.show_form, reads_query=True), "POST": login.log_in}),
        ("console.provider", "/console/login/{provider}", {"GET": View(logins.redirect_to_provider, reads_query=True)}),
        ("console.back", "/console/login/{provider}/back", {"GET": View(logins.finish_login, reads_query=True)}),
        ("console.logout", "/console/logout", {"POST": login.log_out}),
        ("console.health", "/console/health", {"GET": View(health.show)}),
        ("console.static", pages.FILE_ROUTE, {"GET": pages.show_file}),
        ("console.keys", APP + "/_keys", {"GET": page(applications.show_keys)}),
        ("console.audit", APP + "/_audit", {"GET": page(applications.show_log, applications.LOG_FIELDS)}),
        ("console.entry", APP + "/_audit/{place}", {"GET": page(applications.show_entry)}),
        (
            "console.schedules",
            APP + "/_schedules",
            {"GET": page(applications.show_schedules, applications.SCHEDULES_FIELDS)},
        ),
        ("console.schedule", APP + "/_schedules/{schedule}", {"GET": page(applications.show_schedule)}),
        ("console.groups", APP + "/_groups", {"GET": View(groups.show_all, reads_query=True)}),
        ("console.group", APP + "/_groups/{group}", {"GET": View(groups.show, reads_query=True)}),
        ("console.application_act", APP + "/_acts/{act}", doing),
        ("console.queue_act", QUEUE + "/acts/{act}", doing),
        ("console.overview", APP, {"GET": page(overview.show, overview.FIELDS)}),
        ("console.figures", APP + "/_overview", {"GET": View(figures.show)}),
        ("console.queues", APP + "/_queues", {"GET": page(applications.show_queues, applications.QUEUES_FIELDS)}),
        (
            "console.failures",
            APP + "/_failures",
            {"GET": page(applications.show_failures, applications.FAILURES_FIELDS, reserves=True)},
        ),
        ("console.queue", QUEUE, {"GET": page(queue.show, queue.FIELDS, reserves=True)}),
        (
            "console.tab",
            QUEUE + f"/{{tab:{'|'.join(queue.TABS)}}}",
            {"GET": page(queue.show_tab, queue.TAB_FIELDS, reserves=True)},
        ),
        ("console.live", QUEUE + "/live", {"GET": View(charts.live, ends_with_client=True, reads_query=True)}),
        ("console.messages", QUEUE + "/messages", {"GET": page(messages.show_list, messages.FIELDS, reserves=True)}),
        ("console.message", QUEUE + "/messages/{place}", {"GET": page(messages.show, reserves=True)}),
        ("console.body", QUEUE + "/messages/{place}/body", {"GET": page(messages.download, reserves=True)}),
    ]


def make_console(
    examine: Examine,
    *,
    samples: bool = False,
    users: Users | None = None,
    providers: Sequence[Provider] = (),
    is_local: bool = False,
) -> Include:
    """Returns the include of the console, which adds its protocol, the credentials of its sessions and its pages.

    It also records the service's messages for charts.

    Args:
        examine: Examines the store as ``queuey doctor`` does. Blocks.
        samples: Whether a thread counts the messages of recently used queues, for their charts.
        users: The setting ``users``.
        providers: The providers at which users may log in.
        is_local: Whether to serve only browsers on this machine, with links that log in once.
    """

    def includeme(config: Any) -> None:  # noqa: ANN401 - Pyramid's objects have no types
        app: App = config.registry.app
        service, authorization = app.service, app.authorization
        callers = SessionCredentials(service.store.applications, service.sessions, users or {})
        app.authenticate.add(callers)
        app.facades.append(Console(callers, is_local=is_local))
        history = History(service.workers)
        service.metrics.add_listener(history.record)
        if samples:
            work = partial(sample_depths, service, history, service.stopping.wait)
            threading.Thread(target=work, name="queuey-depths", daemon=True).start()
        acts = (*QUEUE_ACTS, *make_acts(app.operations))
        resources = make_resources(
            service, authorization, examine, history, callers, acts, providers, is_local=is_local
        )
        for name, pattern, views in resources:
            config.add_resource(name, pattern, views)

    return includeme


class Console:
    """The protocol of the console. See :class:`~queuey.web.requests.PathProtocol`.

    Args:
        callers: Turns a session's token into a credential.
        is_local: Whether only browsers on this machine, without a proxy, get pages.
    """

    def __init__(self, callers: SessionCredentials, *, is_local: bool = False) -> None:
        self._callers = callers
        self._is_local = is_local

    def prepare(self, request: Request) -> bool:
        """Replaces the credential of a request for a page by that of its session, or drops it without a session.

        Returns False for a path outside of the console, and changes nothing then.

        Raises:
            NoSuchResource: Pages are only for this machine, and the request did not come directly from it.
        """
        path = request.path
        if path != pages.ROOT and not path.startswith(f"{pages.ROOT}/"):
            return False
        if self._is_local and not cookies.came_without_proxy(request):
            raise make_path_error(path)
        request.facade = self
        request.headers.pop("authorization", None)
        token = cookies.read(request, cookies.SESSION_COOKIE)
        if token is not None:
            request.headers["authorization"] = self._callers.make_header(token)
        return True

    def error_response(self, request: Request, error: Exception, status: int, text: str) -> Response:
        """Answers with a page, or with plain text to a stream; 429 and 503 have Retry-After.

        Redirects to the login without a session. The list of messages gets a row with the error instead of a page.
        """
        if isinstance(error, NotAuthenticated):
            return self._redirect_to_login(request)
        headers: tuple[Header, ...] = ()
        if status in {429, 503}:
            headers = (("Retry-After", str(getattr(error, "retry_after", 1))),)
        if wants_events(request):
            return Response(status, text.encode(), TEXT, *pages.HEADERS, *headers)
        title = STATUS_LINES[status]
        if pages.is_part(request) and request.path.endswith("/messages"):
            # The error replaces the last row of the table, which shows the progress of a scan and continues it.
            address = f"{quote(request.path, safe='/')}?{request.query}"
            return pages.render(request, "error_row.html", title, *headers, status=status, text=text, address=address)
        return pages.render(request, "error.html", title, *headers, status=status, text=text)

    def _redirect_to_login(self, request: Request) -> Response:
        """Redirects to the login, which leads back to a requested page, and drops the sent session cookie.

        A script that loads a part of a page gets 401 with the address, and its page goes there.
        """
        if pages.is_part(request):
            # A script would follow a redirect and put the login form into the page.
            return Response(401, b"", ("HX-Redirect", _login_address(_current_page(request))), *pages.HEADERS)
        path = quote(request.path, safe="/")
        address = f"{path}?{request.query}" if request.query else path
        # A browser that follows a link of another site does not send its strict cookie: the session may be valid.
        sent = cookies.read(request, cookies.SESSION_COOKIE) is not None
        dropped = (cookies.make_expired_cookie(request, cookies.SESSION_COOKIE),) if sent else ()
        return pages.redirect(_login_address(address if request.method == "GET" else pages.ROOT), *dropped)

    def application_of(self, caller: Caller, /) -> str:
        """Returns a blank name: a session's requests count for its key's application, whatever queue they show."""
        return ""


def _login_address(return_to: str) -> str:
    """Returns the address of the login that leads back to a page, unless that is longer than :data:`MAX_RETURN_TO`."""
    if return_to == pages.ROOT or len(return_to) > MAX_RETURN_TO:
        return_to = ""
    return pages.link("login", next=return_to)


def _current_page(request: Request) -> str:
    try:
        address = urlsplit(request.headers.get("hx-current-url", ""))
    except ValueError:
        return pages.ROOT
    return own_page(f"{address.path}?{address.query}" if address.query else address.path)


class HealthView:
    """The view of ``/console/health``.

    Args:
        page_requests: Identifies callers.
        examine: Examines the store. Blocks.
    """

    def __init__(self, page_requests: PageRequestFactory, examine: Examine) -> None:
        self._page_requests = page_requests
        self._store = page_requests.service.store
        self._findings = Collection(self._examine, MAX_FINDINGS_AGE)
        self._examine_store = examine

    async def show(self, request: Request, match: Match) -> Response:
        """Shows the health of the store; all other findings and statistics only to operators."""
        page_request = await self._page_requests.identify(request, match, {})
        findings = await self._await_findings()
        operates = any(grant.application is None for grant in page_request.caller.grants)
        statistics = await page_request.service.statistics() if operates else {}
        return await page_request.render(
            "health.html",
            "Health",
            operates=operates,
            findings=findings if operates else findings[-1:],
            statistics=sorted(statistics.items()),
            store=self._store.name,
            version=__version__,
        )

    async def find_visible_findings(self, page_request: PageRequest) -> Sequence[Finding] | None:
        """Returns all findings for an operator, only the store's for others, or None if that takes too long."""
        try:
            findings = await asyncio.wait_for(self._await_findings(), FINDINGS_TIMEOUT)
        except TimeoutError:
            return None
        return findings if any(grant.application is None for grant in page_request.caller.grants) else findings[-1:]

    async def _await_findings(self) -> list[Finding]:
        """Returns findings up to :data:`MAX_FINDINGS_AGE` seconds old; the last one says whether the store answers.

        One examination serves all concurrent requests.
        """
        return await asyncio.shield(self._findings.begin_or_reuse())

    async def _examine(self) -> list[Finding]:
        return [*await self._page_requests.service.core.in_thread(self._examine_store), await self._ping_store()]

    async def _ping_store(self) -> Finding:
        try:
            await self._store.ping()
        except StoreUnavailable as error:
            return Finding("store", "fail", str(error), "The service's heartbeat is red for the same reason.")
        return Finding("store", "ok", "can be written and read")
