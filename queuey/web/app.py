"""Assembling the application: one include per API, the one with the hot routes first."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Container, Sequence
from typing import Any

from queuey.metrics import Metrics
from queuey.service import Limits, Service
from queuey.settings import Facades
from queuey.storage import Store
from queuey.web import facades, ops, v1
from queuey.web.authorization import Authenticator, Authorization
from queuey.web.credentials import CredentialReader
from queuey.web.credentials.application_keys import ApplicationKeys
from queuey.web.errors import NoSuchResource, error_response
from queuey.web.facades.callers import FacadeCallers
from queuey.web.responses import Response

with warnings.catch_warnings():
    # The warning about pkg_resources, which Pyramid 2.1 imports: users of the service cannot do anything about it.
    warnings.filterwarnings("ignore", "pkg_resources is deprecated")
    from pyramid.config import Configurator


class _Root:
    """The one context of all views: routes alone lead to them, there is nothing to traverse."""


class _NoTraversal:
    """Finds the root at the end of every path. Pyramid would otherwise take the path apart at each request."""

    __slots__ = ("_found",)

    def __init__(self, root: _Root) -> None:
        self._found = _FOUND

    def __call__(self, request: Any) -> dict[str, Any]:  # noqa: ANN401 - Pyramid's objects have no types
        return self._found


_ROOT = _Root()
_FOUND = {
    "context": _ROOT,
    "view_name": "",
    "subpath": (),
    "traversed": (),
    "virtual_root": _ROOT,
    "virtual_root_path": (),
    "root": _ROOT,
}


def _not_found(context: Any, request: Any) -> Response:  # noqa: ANN401 - Pyramid's objects have no types
    facades.admit(request)
    return error_response(NoSuchResource("The resource could not be found."), request.environ)


def _failed(context: Any, request: Any) -> Response:  # noqa: ANN401 - Pyramid's objects have no types
    """Answers for errors outside of any view; a path that is not UTF-8 leads nowhere."""
    if isinstance(context, UnicodeDecodeError):
        return _not_found(context, request)
    facades.admit(request)
    return error_response(context, request.environ)


def make_app(  # noqa: PLR0913 - what a service is made of
    store: Store,
    *,
    limits: Limits | None = None,
    metrics: Metrics | None = None,
    stopping: threading.Event | None = None,
    publish_metrics: bool = True,
    readers: Sequence[CredentialReader] = (),
    private: Container[str] = (),
    served: Facades | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Any:  # noqa: ANN401 - Pyramid's router, a WSGI application
    """Makes the WSGI application.

    Args:
        store: Open; the caller closes it when no request is under way any more.
        limits: How much one request may ask for.
        metrics: Where requests are counted.
        stopping: Setting it answers all waiting requests and makes the load balancer's heartbeat fail.
        publish_metrics: Serve what was counted at ``/metrics``.
        readers: Of credentials other than the store's application keys.
        private: Applications that do not reveal to other callers which queues exist.
        served: Which facades there are; None: none.
        clock: Seconds, for how long a credential is believed without asking the store.
    """
    config = Configurator(introspection=False, root_factory=lambda _: _ROOT)
    config.add_traverser(_NoTraversal, _Root)
    registry = config.registry
    registry.service = service = Service(store, limits, metrics=metrics, stopping=stopping)
    registry.callers = FacadeCallers()
    registry.authenticate = Authenticator([ApplicationKeys(store), registry.callers, *readers], clock=clock)
    registry.authorization = Authorization(service, registry.authenticate, private)
    registry.publish_metrics = publish_metrics
    registry.served = served or Facades()
    registry.hot = {}
    if registry.served.only is None:
        config.include(v1.includeme)
    config.include(ops.includeme)
    config.include(facades.includeme)
    config.add_notfound_view(_not_found)
    config.add_exception_view(_failed, context=Exception)
    return config.make_wsgi_app()
