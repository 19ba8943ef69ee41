"""Makes coordinators from URLs; the only module that knows all coordination services.

The ZooKeeper package is imported on demand, because it needs an optional driver.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from qdo.errors import InvalidArgument
from qdo.group.records import check_name
from qdo.group.service import ServiceCoordinator
from queuey.model.extras import require

if TYPE_CHECKING:
    from qdo.group.protocol import Coordinator
    from qdo.group.zookeeper.coordinator import ZooKeeperCoordinator
    from queuey.client import AsyncClient


def open_coordinator(
    url: str,
    group: str,
    *,
    session_timeout: float | None = None,
    **options: Any,  # noqa: ANN401 - the service checks its own
) -> ZooKeeperCoordinator:
    """Returns a coordinator for a group in ZooKeeper. ``await coordinator.open()`` connects it.

    Example:
        >>> from qdo import ZooKeeperCoordinator, open_coordinator
        >>> isinstance(open_coordinator("zookeeper://localhost:2181", "billing"), ZooKeeperCoordinator)
        True

    Args:
        url: ``zookeeper://host:port,host:port/chroot?option=value``.
        group: The group's name, any text of 1 to 1,000 characters.
        session_timeout: Seconds without a heartbeat after which a member counts as gone, or None for the default.
        **options: Options of ZooKeeper; they override those in the URL.

    Raises:
        InvalidArgument: The URL or an option is not valid, or the driver is not installed.
    """
    check_name("group", group)
    scheme, colon, _ = url.partition(":")
    if not colon or scheme != "zookeeper":
        raise InvalidArgument(f"the URL of a coordination service begins with zookeeper:, not {url!r}")
    need_zookeeper()
    from qdo.group.zookeeper import connection_options  # noqa: PLC0415 - the default coordinator does without
    from qdo.group.zookeeper.coordinator import ZooKeeperCoordinator  # noqa: PLC0415 - as above
    from qdo.group.zookeeper.link import ZooKeeperLink  # noqa: PLC0415 - needs its driver, which may not be installed

    access = connection_options.parse(url, session_timeout=session_timeout, **options)
    context = None if access.tls is None else access.tls.context()
    connect = partial(ZooKeeperLink, access, context)
    return ZooKeeperCoordinator(group, connect, access.session_timeout, access.chroot)


def make_coordinator(
    client: AsyncClient, coordinator: Coordinator | None, group: str | None, revoke_timeout: float, grace: float
) -> Coordinator | None:
    """Returns the given coordinator, or one for the service's group with the given name, or None if neither is given.

    Raises:
        InvalidArgument: Both are given, or the group name is not valid.
    """
    if group is None:
        return coordinator
    if coordinator is not None:
        raise InvalidArgument("give a coordinator or group=, not both")
    return ServiceCoordinator(client, group, revoke_timeout=revoke_timeout, grace=grace)


def need_zookeeper() -> None:
    """Checks that ZooKeeper's driver is installed.

    Raises:
        InvalidArgument: The driver is not installed.
    """
    require("zookeeper", "Coordination by ZooKeeper", InvalidArgument)
