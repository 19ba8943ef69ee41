"""Makes the gateway of an application from the settings."""

from __future__ import annotations

from queuey.settings import Settings, origins_of
from queuey.web.admission.rates import RateLimits
from queuey.web.gateway.asgi import Gateway
from queuey.web.parts import App


def make_gateway(application: App, settings: Settings) -> Gateway:
    """Returns the gateway of an application as the settings want it."""
    return Gateway(
        application,
        threads=settings.threads,
        # With half as many for others there is still a quarter of the connections for everything else.
        waiters=min(settings.wait_slots, settings.connections // 2),
        max_body=settings.longest_body(max(settings.max_body, settings.max_batch_bytes)),
        deadline=settings.deadline,
        memory=settings.memory,
        page_bytes=settings.page_bytes,
        rates=RateLimits(settings.rates) if settings.rates.any else None,
        origins=origins_of(settings.users),
    )
