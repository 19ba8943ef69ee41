"""The parts of an application, where includes and the gateway find them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from queuey.access.authorization import Authenticator, Authorization
from queuey.app.service import Service
from queuey.web.endpoint import Endpoint, Resources
from queuey.web.requests import Protocol


@dataclass(kw_only=True)
class App:
    """The application, as a gateway serves it. An include finds it at ``config.registry.app``.

    Attributes:
        service: The use cases.
        authenticate: Authenticates callers.
        authorization: Checks what callers may do.
        shown_backlogs: Applications and patterns of their queues whose backlog is shown at ``/metrics``.
        shown_lags: Applications and patterns of their queues whose consumer groups' lag is shown there.
        own_api: Version 1 of the API is served. If False, an include has all paths but those for operators.
        on_loopback: Only this machine can connect.
        publish_metrics: Metrics are served at ``/metrics``.
        endpoints: Endpoints by the names of their routes. Includes add some (``config.add_resource``).
        facades: The protocols other than version 1, each for some paths. Includes add some.
        resources: Finds resources by path; set when all includes have been called.
    """

    service: Service
    authenticate: Authenticator
    authorization: Authorization
    shown_backlogs: Sequence[tuple[str, str]]
    shown_lags: Sequence[tuple[str, str]]
    own_api: bool
    on_loopback: bool
    publish_metrics: bool
    endpoints: dict[str, Endpoint] = field(default_factory=dict)
    facades: list[Protocol] = field(default_factory=list)
    resources: Resources = field(init=False)
