"""Groups of a real service, as the suite reaches them."""

from __future__ import annotations

from qdo.group.service import ServiceCoordinator
from queuey.client import AsyncClient

LONG_SESSION_SECONDS = 20.0
"""Session timeout in seconds that outlasts a test."""


class ServiceGroups:
    """A test's group whose members meet at the service whose messages they handle.

    Args:
        client: A client of the service; the caller closes it.
        group: The unique name of the group.

    Attributes:
        short: Session timeout in seconds that is short enough for a test to wait for.
    """

    short = 3.0

    def __init__(self, client: AsyncClient, group: str) -> None:
        self.group = group
        self._client = client

    def coordinator(self, _group: str = "", *, session_timeout: float = LONG_SESSION_SECONDS) -> ServiceCoordinator:
        return ServiceCoordinator(self._client, self.group, session_timeout=session_timeout)

    async def close(self) -> None:
        """Nothing is running."""
