"""Makes the gateway of an application from the settings."""

from __future__ import annotations

from typing import Any

from queuey.settings import Settings, origins_of
from queuey.web.admission.rates import RateLimits
from queuey.web.gateway.asgi import Gateway


def make_gateway(application: Any, settings: Settings) -> Gateway:  # noqa: ANN401 - Pyramid's router
    """Returns the gateway of an application as the settings want it."""
    return Gateway(
        application,
        threads=settings.threads,
        # With half as many for others there is still a quarter of the connections for everything else.
        waiters=min(settings.wait_slots, settings.connections // 2),
        max_body=settings.facades.longest_body(max(settings.max_body, settings.max_batch_bytes)),
        deadline=settings.deadline,
        memory=settings.memory,
        page_bytes=settings.page_bytes,
        rates=RateLimits(settings.rates) if settings.rates.any else None,
        origins=origins_of(settings.users),
    )
