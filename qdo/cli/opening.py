"""What commands work with: the service, and a group where its members meet."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, NamedTuple

from qdo.cli.settings import WorkSettings
from qdo.errors import InvalidArgument

if TYPE_CHECKING:
    from qdo.coordination import Coordinator
    from queuey.client import AsyncClient


class OpenedGroup(NamedTuple):
    """A group and the service that it works for.

    Attributes:
        client: Speaks for the application.
        coordinator: Of the group.
        service: The id of the service's store, by which partitions are called.
    """

    client: AsyncClient
    coordinator: Coordinator
    service: str


def open_client(settings: WorkSettings) -> AsyncClient:
    """Returns a client of the service that the settings name.

    Raises:
        ClientError: They name none, or the profile cannot be used.
    """
    from queuey.client import AsyncClient

    if settings.profile is not None:
        # The client reads the profile from the file that this variable names.
        os.environ["QUEUEY_PROFILE"] = str(settings.profile)
    verify = True if settings.ca is None else str(settings.ca)
    return AsyncClient(settings.url, key=settings.key, application=settings.app, verify=verify)


def group_of(settings: WorkSettings) -> str:
    """Returns the group's name.

    Raises:
        InvalidArgument: None is named.
    """
    if settings.group is None:
        raise InvalidArgument("the group is missing: --group, QDO_GROUP or group in the settings file")
    return settings.group


def make_coordinator(settings: WorkSettings, group: str | None = None) -> Coordinator:
    """Returns a coordinator that is not open yet.

    Args:
        settings: Name the place, and the group unless it is given.
        group: Another group.

    Raises:
        InvalidArgument: No group is named, or the place cannot be one.
    """
    from qdo.coordination.opening import open_coordinator

    name = group or group_of(settings)
    return open_coordinator(settings.coordination, name, session_timeout=settings.session_timeout)


@asynccontextmanager
async def open_group(settings: WorkSettings, group: str | None = None) -> AsyncIterator[Coordinator]:
    """Connects to where a group's members meet; see :func:`make_coordinator`.

    Raises:
        CoordinationLost: It does not answer.
    """
    coordinator = make_coordinator(settings, group)
    try:
        await coordinator.open()
        yield coordinator
    finally:
        await coordinator.close()


@asynccontextmanager
async def open_both(settings: WorkSettings) -> AsyncIterator[OpenedGroup]:
    """Opens a client and the group; see :func:`open_client` and :func:`open_group`."""
    from qdo.consumer.rebalance.queue_discovery import identify

    async with open_client(settings) as client, open_group(settings) as coordinator:
        yield OpenedGroup(client, coordinator, await identify(client))
