"""Assembles the application: one include per API, the one with most requests first.

Includes add resources; Pyramid holds their routes. ``docs/extending.md`` shows an include.
"""

from __future__ import annotations

import sys
import threading
import time
import warnings
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from queuey.access.authorization import Authenticator, Authorization
from queuey.access.credentials.members import PresentRights
from queuey.access.credentials.readers import ApplicationKeys, CredentialReader
from queuey.app import version_1
from queuey.app.service import App, Service
from queuey.operations import health_views, lag_metrics
from queuey.runtime.event_loop import Core
from queuey.runtime.limits import Limits
from queuey.runtime.metrics import Metrics, Snapshot, make_snapshot
from queuey.storage import Store
from queuey.web.endpoint import Endpoint, Handler, Match, Resources, View
from queuey.web.errors import NoSuchResource, make_path_error
from queuey.web.requests import Request
from queuey.web.responses import Response


class _PackageFiles(ModuleType):
    """The part of ``pkg_resources`` that Pyramid 2.1 uses. setuptools 82 removed the module."""

    DefaultProvider = object

    @staticmethod
    def resource_filename(package: str, name: str) -> str:
        return str(files(package).joinpath(name))

    @classmethod
    def resource_exists(cls, package: str, name: str) -> bool:
        return Path(cls.resource_filename(package, name)).exists()

    @classmethod
    def resource_isdir(cls, package: str, name: str) -> bool:
        return Path(cls.resource_filename(package, name)).is_dir()


with warnings.catch_warnings(), ExitStack() as stack:
    # Warnings about imports of Pyramid 2.1, which users of the service cannot change.
    for text in ("pkg_resources is deprecated", "Deprecated call to `pkg_resources", "'cgi' is deprecated"):
        warnings.filterwarnings("ignore", text)
    if find_spec("pkg_resources") is None:
        sys.modules["pkg_resources"] = _PackageFiles("pkg_resources")
        stack.callback(sys.modules.pop, "pkg_resources")
    from pyramid.config import Configurator


async def _refuse_unknown_path(request: Request, _match: Match) -> Response:
    if request.facade is not None:
        raise NoSuchResource("The resource could not be found.")
    raise make_path_error(request.path)


def _add_resource(
    config: Any,  # noqa: ANN401 - Pyramid's objects have no types
    name: str,
    pattern: str,
    views: Mapping[str, View | Handler],
    *,
    original: bool = False,
    refuses_unknown: bool = False,
    for_monitors: bool = False,
) -> None:
    """Adds a resource: the directive ``config.add_resource``, for :class:`~queuey.web.endpoint.Endpoint`."""
    path = f"{config.route_prefix.rstrip('/')}/{pattern.lstrip('/')}" if config.route_prefix else pattern
    config.action(("route-connect", name), partial(config.get_routes_mapper().connect, name, path))
    app: App = config.registry.app
    app.endpoints[name] = Endpoint(
        name, views, original=original, refuses_unknown=refuses_unknown, for_monitors=for_monitors
    )


def _add_operator_resources(config: Any, app: App) -> None:  # noqa: ANN401 - Pyramid's objects have no types
    """Adds the resources for operators.

    Metrics are at ``/metrics``, or at ``/__metrics__`` if a facade has other paths.
    """
    service = app.service
    backlogs = lag_metrics.Backlogs(service.queues, service.claims, app.shown_backlogs)
    lags = lag_metrics.GroupLags(service.queues, service.offsets, app.shown_lags)

    async def count() -> Snapshot:
        return make_snapshot(service.metrics, await service.statistics())

    counts = lag_metrics.WorkerCounts(count, service.workers, service.core)
    views = health_views.OpsViews(
        service.store, service.stopping, counts.collect_all, backlogs=backlogs.measure, lags=lags.measure
    )
    resources: list[tuple[str, str, Handler]] = [
        ("ops.heartbeat", "/__heartbeat__", views.heartbeat),
        ("ops.lbheartbeat", "/__lbheartbeat__", views.lbheartbeat),
        ("ops.version", "/__version__", views.version),
    ]
    if app.publish_metrics:
        # Where a facade has all other paths, a queue may be called metrics.
        path = "/metrics" if app.own_api else "/__metrics__"
        resources.append(("ops.metrics", path, views.metrics))
    for name, path, view in resources:
        config.add_resource(name, path + "{_:/?}", {"GET": view}, for_monitors=True)


def make_app(  # noqa: PLR0913 - what a service is made of
    store: Store,
    *,
    limits: Limits | None = None,
    metrics: Metrics | None = None,
    stopping: threading.Event | None = None,
    publish_metrics: bool = True,
    shown_backlogs: Sequence[tuple[str, str]] = (),
    shown_lags: Sequence[tuple[str, str]] = (),
    readers: Sequence[CredentialReader] = (),
    private: Container[str] = (),
    own_api: bool = True,
    on_loopback: bool = False,
    includes: Iterable[Callable[[Any], None]] = (),
    clock: Callable[[], float] = time.monotonic,
    core: Core | None = None,
) -> App:
    """Makes the application, which a gateway serves.

    Args:
        store: An open store; the caller closes it when no request is under way any more.
        stopping: Setting it answers all waiting requests and makes the load balancer's heartbeat fail.
        publish_metrics: Serve metrics at ``/metrics``.
        shown_backlogs: Applications and patterns of their queues whose backlog is shown there.
        shown_lags: Applications and patterns of their queues whose consumer groups' lag is shown there.
        readers: Readers of credentials other than the store's application keys.
        private: Applications that do not reveal to other callers which queues exist.
        own_api: Serve version 1 of the API. If False, an include has all paths but those for operators.
        on_loopback: Only this machine can connect, so the page of the API may have forms that ask for a key.
        includes: Functions that add resources; see ``docs/extending.md``.
        clock: The monotonic clock, in seconds, for the age of cached callers.
    """
    config = Configurator(introspection=False)
    config.add_directive("add_resource", _add_resource, action_wrap=False)
    keys = ApplicationKeys(store.applications)
    service = Service(store, limits, metrics=metrics, stopping=stopping, core=core, rights=PresentRights(keys))
    authenticate = Authenticator([keys, *readers], clock=clock)
    app = App(
        service=service,
        authenticate=authenticate,
        authorization=Authorization(store, authenticate, private),
        shown_backlogs=shown_backlogs,
        shown_lags=shown_lags,
        own_api=own_api,
        on_loopback=on_loopback,
        publish_metrics=publish_metrics,
    )
    config.registry.app = app
    config.registry.service = service  # For third-party includes; see ``docs/extending.md``.
    app.operations = version_1.bind_operations(app)
    if own_api:
        config.include(version_1.includeme)
    _add_operator_resources(config, app)
    for include in includes:
        config.include(include)
    config.commit()
    nowhere = Endpoint("gateway", {}, otherwise=_refuse_unknown_path, original=True)
    app.resources = Resources(config.get_routes_mapper().get_routes(), app.endpoints, nowhere)
    return app
