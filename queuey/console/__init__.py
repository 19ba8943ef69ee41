"""The console: pages on which operators see queues. One include, at ``/console``; the setting ``console`` turns it on.

It calls the use cases that version 1 of the API calls, with the rights of the key or user that has logged in. What
it changes is an act of :mod:`.acts`, which stands in the audit log. ``docs/console.md`` is for its users,
``docs/decisions/0040-console-sessions.md``, ``0041-console-parts.md`` and ``0042-console-login-by-provider.md`` say why
it is as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from queuey.console import audit, lists, messages, queue, schedules, static_files
from queuey.console.acts import ActViews
from queuey.console.charts import ChartView, start_sampling
from queuey.console.health import Examine, HealthView
from queuey.console.login import LoginViews, ProviderViews
from queuey.console.protocol import Console
from queuey.console.sessions import Asks, SessionCallers
from queuey.service import Service
from queuey.service.browsing.history import History
from queuey.settings import Users
from queuey.web.authorization import Authorization
from queuey.web.endpoint import Handler, View
from queuey.web.parts import App
from queuey.web.v1.schedules.saving import ScheduleSaver

if TYPE_CHECKING:
    from queuey.web.credentials.code_flow import Provider

APP = "/console/a/{app}"
QUEUE = APP + "/{queue:[^/_][^/]*}"
Resource = tuple[str, str, dict[str, View | Handler]]


def resources(
    service: Service,
    authorization: Authorization,
    examine: Examine,
    history: History,
    callers: SessionCallers,
    providers: Sequence[Provider] = (),
) -> list[Resource]:
    """Returns name, pattern and views of every page."""
    asks = Asks(service, authorization, callers, ScheduleSaver(service, authorization))
    view, acts, charts = asks.view, ActViews(asks), ChartView(service, authorization, history)
    doing: dict[str, View | Handler] = {"GET": View(acts.show, asks=True), "POST": acts.do}
    login = LoginViews(service.store, service.sessions, authorization, providers)
    logins = ProviderViews(login, providers)
    return [
        ("console.applications", "/console{_:/?}", {"GET": view(lists.show_applications, lists.FIELDS)}),
        ("console.login", "/console/login", {"GET": View(login.form, asks=True), "POST": login.log_in}),
        ("console.provider", "/console/login/{provider}", {"GET": View(logins.go, asks=True)}),
        ("console.back", "/console/login/{provider}/back", {"GET": View(logins.come_back, asks=True)}),
        ("console.logout", "/console/logout", {"POST": login.log_out}),
        ("console.health", "/console/health", {"GET": View(HealthView(asks, examine).show)}),
        ("console.static", static_files.ROUTE, {"GET": static_files.show}),
        ("console.keys", APP + "/_keys", {"GET": view(audit.show_keys)}),
        ("console.audit", APP + "/_audit", {"GET": view(audit.show_log, audit.FIELDS)}),
        ("console.entry", APP + "/_audit/{place}", {"GET": view(audit.show_entry)}),
        ("console.schedules", APP + "/_schedules", {"GET": view(schedules.show_list, schedules.FIELDS)}),
        ("console.schedule", APP + "/_schedules/{schedule}", {"GET": view(schedules.show)}),
        ("console.application_act", APP + "/_acts/{act}", doing),
        ("console.queue_act", QUEUE + "/acts/{act}", doing),
        ("console.queues", APP, {"GET": view(lists.show_queues, lists.FIELDS)}),
        ("console.failures", APP + "/_failures", {"GET": view(lists.show_failures, lists.FIELDS, page=True)}),
        ("console.queue", QUEUE, {"GET": view(queue.show)}),
        ("console.part", QUEUE + "/parts/{part}", {"GET": view(queue.show_part, queue.FIELDS, page=True)}),
        ("console.live", QUEUE + "/live", {"GET": View(charts.live, reads=True)}),
        ("console.messages", QUEUE + "/messages", {"GET": view(messages.show_list, messages.FIELDS, page=True)}),
        ("console.message", QUEUE + "/messages/{place}", {"GET": view(messages.show, page=True)}),
        ("console.body", QUEUE + "/messages/{place}/body", {"GET": view(messages.download, page=True)}),
    ]


def console(
    examine: Examine, *, samples: bool = False, users: Users | None = None, providers: Sequence[Provider] = ()
) -> Callable[[Any], None]:
    """Returns the include of the console.

    Args:
        examine: Examines the store as ``queuey doctor`` does; blocks.
        samples: Have a thread count the messages of queues that are used, for their charts.
        users: The setting.
        providers: At which users may log in.
    """

    def includeme(config: Any) -> None:  # noqa: ANN401 - Pyramid's objects have no types
        app: App = config.registry.app
        service, authorization = app.service, app.authorization
        callers = SessionCallers(service.store, service.sessions, users or {})
        app.authenticate.add(callers)
        app.facades.append(Console(callers))
        history = History(service.workers)
        service.metrics.heard = history.note
        if samples:
            start_sampling(service, history)
        for name, pattern, views in resources(service, authorization, examine, history, callers, providers):
            config.add_resource(name, pattern, views)

    return includeme
