"""The web room: HTTP on one side, the use cases on the other.

:func:`make_app` assembles it: one include per API, the one with the hot routes first.
"""

from __future__ import annotations

import threading
from typing import Any

from pyramid.config import Configurator

from queuey.metrics import Metrics
from queuey.service import Limits, Service
from queuey.storage import Store
from queuey.web import ops, v1
from queuey.web.answers import Answer
from queuey.web.errors import NoSuchResource, error_answer

__all__ = ["make_app"]


def _not_found(context: Any, request: Any) -> Answer:  # noqa: ANN401 - Pyramid's objects have no types
    return error_answer(NoSuchResource("The resource could not be found."), request.environ)


def _failed(context: Any, request: Any) -> Answer:  # noqa: ANN401 - Pyramid's objects have no types
    """Answers for errors outside of any view; a path that is not UTF-8 leads nowhere."""
    if isinstance(context, UnicodeDecodeError):
        return _not_found(context, request)
    return error_answer(context, request.environ)


def make_app(
    store: Store,
    *,
    limits: Limits | None = None,
    metrics: Metrics | None = None,
    stopping: threading.Event | None = None,
) -> Any:  # noqa: ANN401 - Pyramid's router, a WSGI application
    """Makes the WSGI application.

    Args:
        store: Open; the caller closes it when no request is under way any more.
        limits: How much one request may ask for.
        metrics: Where requests are counted.
        stopping: Setting it answers everybody who waits for messages and turns the load balancer's heartbeat red.
    """
    config = Configurator(introspection=False)
    config.registry.service = Service(store, limits, metrics=metrics, stopping=stopping)
    config.include(v1.includeme)
    config.include(ops.includeme)
    config.add_notfound_view(_not_found)
    config.add_exception_view(_failed, context=Exception)
    return config.make_wsgi_app()
