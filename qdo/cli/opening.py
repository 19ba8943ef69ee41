"""The service and the group that commands work with."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, NamedTuple

from qdo.cli.settings import WorkSettings
from qdo.errors import InvalidArgument

if TYPE_CHECKING:
    from qdo.coordination import AnyCoordinator
    from queuey.client import AsyncClient


class OpenedGroup(NamedTuple):
    """A group and the service that it works for; ``service`` is the id of the store."""

    client: AsyncClient
    coordinator: AnyCoordinator
    service: str


def open_client(settings: WorkSettings) -> AsyncClient:
    """Raises ClientError if the settings name no service, or the profile cannot be used."""
    from queuey.client import AsyncClient

    if settings.profile is not None:
        # The client reads the profile from the file that this variable names.
        os.environ["QUEUEY_PROFILE"] = str(settings.profile)
    verify = True if settings.ca is None else str(settings.ca)
    return AsyncClient(settings.url, key=settings.key, application=settings.app, verify=verify)


def group_of(settings: WorkSettings) -> str:
    if settings.group is None:
        raise InvalidArgument("the group is missing: --group, QDO_GROUP or group in the settings file")
    return settings.group


def make_coordinator(settings: WorkSettings, group: str | None = None) -> AnyCoordinator:
    """Returns a coordinator of this group, or of the one in the settings; not open yet."""
    from qdo.coordination.opening import open_coordinator

    name = group or group_of(settings)
    return open_coordinator(settings.coordination, name, session_timeout=settings.session_timeout)


@asynccontextmanager
async def open_group(settings: WorkSettings, group: str | None = None) -> AsyncIterator[AnyCoordinator]:
    coordinator = make_coordinator(settings, group)
    try:
        await coordinator.open()
        yield coordinator
    finally:
        await coordinator.close()


@asynccontextmanager
async def open_both(settings: WorkSettings) -> AsyncIterator[OpenedGroup]:
    from qdo.consumer.rebalance.queue_discovery import identify

    async with open_client(settings) as client, open_group(settings) as coordinator:
        yield OpenedGroup(client, coordinator, await identify(client))
