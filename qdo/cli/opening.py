"""Opens the client and the coordinator of a command."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, NamedTuple

from qdo.cli.settings import WorkSettings
from qdo.errors import InvalidArgument
from queuey.terminal import output

if TYPE_CHECKING:
    from qdo.group.protocol import Coordinator
    from queuey.client import AsyncClient
    from queuey.client.http.attempts import NoticePause


class OpenedGroup(NamedTuple):
    """A client, the coordinator of a group, and the id of the service's store."""

    client: AsyncClient
    coordinator: Coordinator
    service: str


def open_client(settings: WorkSettings, notice: NoticePause | None = output.note_pause) -> AsyncClient:
    from queuey.client import AsyncClient, AsyncTiming

    return AsyncClient(
        settings.url,
        key=settings.key,
        application=settings.app,
        profile=settings.profile,
        verify=settings.ca or True,
        timing=AsyncTiming(notice=notice),
    )


def require_group(settings: WorkSettings) -> str:
    if settings.group is None:
        raise InvalidArgument("the group is missing: --group, QDO_GROUP or group in the settings file")
    return settings.group


def make_coordinator(settings: WorkSettings, client: AsyncClient | None, group: str | None = None) -> Coordinator:
    """Returns a coordinator, not yet opened.

    Args:
        settings: Without ``coordination`` the group is a group of the service itself.
        client: A client of the service. May be None with a coordination service.
        group: The name of the group; by default that in the settings.

    Raises:
        InvalidArgument: The coordination service is not valid, or it does not allow this group name.
    """
    from qdo.group.opening import open_coordinator
    from qdo.group.service import ServiceCoordinator

    name, timeout, url = group or require_group(settings), settings.session_timeout, settings.coordination
    if client is None or url is not None:
        return open_coordinator(url or "", name, session_timeout=timeout)
    return ServiceCoordinator(
        client,
        name,
        session_timeout=timeout,
        revoke_timeout=settings.consumer.revoke_timeout,
        grace=settings.consumer.grace,
    )


@asynccontextmanager
async def open_group(
    settings: WorkSettings, group: str | None = None, client: AsyncClient | None = None
) -> AsyncIterator[Coordinator]:
    """Opens the coordinator of a group, and a client if it needs one and ``client`` is None."""
    async with AsyncExitStack() as stack:
        if client is None and not (settings.coordination or "").startswith("zookeeper:"):
            client = await stack.enter_async_context(open_client(settings))
        coordinator = make_coordinator(settings, client, group)
        stack.push_async_callback(coordinator.close)
        await coordinator.open()
        yield coordinator


@asynccontextmanager
async def open_client_and_group(settings: WorkSettings) -> AsyncIterator[OpenedGroup]:
    from qdo.group.discovery import read_store_id

    async with open_client(settings) as client, open_group(settings, client=client) as coordinator:
        yield OpenedGroup(client, coordinator, await read_store_id(client))
