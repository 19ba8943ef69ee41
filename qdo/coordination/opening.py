"""Makes coordinators from URLs; the only module that knows all coordination services.

The ZooKeeper package is imported on demand, because it needs an optional driver.
"""

from __future__ import annotations

import warnings
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from qdo.coordination.coordinator import Coordinator
from qdo.coordination.records import check_name
from qdo.coordination.service import ServiceCoordinator
from qdo.coordination.service.former_file import LocalCoordination, default_path, parse_path
from qdo.errors import InvalidArgument
from queuey.extras import install_command

if TYPE_CHECKING:
    from qdo.coordination import AnyCoordinator
    from queuey.client import AsyncClient

LOCAL_IS_OVER = (
    "local: is deprecated: the service divides partitions itself. Give consumers and workers group=, and qdo no "
    "--coordination"
)


def open_coordinator(
    url: str,
    group: str,
    *,
    session_timeout: float | None = None,
    **options: Any,  # noqa: ANN401 - the service checks its own
) -> Coordinator:
    """Returns a coordinator for a group in ZooKeeper. ``await coordinator.open()`` connects it.

    ``local:`` is deprecated: consumers and workers accept the returned object and join a group of the service instead.

    Example:
        >>> from qdo import Coordinator, open_coordinator
        >>> isinstance(open_coordinator("zookeeper://localhost:2181", "billing"), Coordinator)
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
    if colon and scheme == "local":
        warnings.warn(LOCAL_IS_OVER, DeprecationWarning, stacklevel=2)
        local: Any = LocalCoordination(group, parse_path(url), session_timeout)
        return cast("Coordinator", local)
    if not colon or scheme != "zookeeper":
        raise InvalidArgument(f"the URL of a coordination service begins with zookeeper:, not {url!r}")
    need_zookeeper()
    from qdo.coordination import zookeeper  # noqa: PLC0415 - needs its driver, which may not be installed

    access = zookeeper.parse_url(url, session_timeout=session_timeout, **options)
    context = None if access.tls is None else access.tls.context()
    connect = partial(zookeeper.ZooKeeperLink, access, context)
    return Coordinator(group, connect, access.session_timeout, access.chroot)


def make_coordinator(
    client: AsyncClient,
    coordinator: AnyCoordinator | LocalCoordination | None,
    group: str | None,
    revoke_timeout: float,
    grace: float,
) -> AnyCoordinator | None:
    """Returns the given coordinator, or one for the service's group with the given name, or None if neither is given.

    A deprecated ``local:`` coordinator becomes one for the service's group of its name.

    Raises:
        InvalidArgument: Both are given, or the group name is not valid.
    """
    make = partial(ServiceCoordinator, client, revoke_timeout=revoke_timeout, grace=grace)
    if group is not None and coordinator is not None:
        raise InvalidArgument("give a coordinator or group=, not both")
    if group is not None:
        return make(group, former=default_path())
    if isinstance(coordinator, LocalCoordination):
        return make(coordinator.group, session_timeout=coordinator.session_timeout, former=coordinator.path)
    return coordinator


def need_zookeeper() -> None:
    """Checks that ZooKeeper's driver is installed.

    Raises:
        InvalidArgument: The driver is not installed.
    """
    try:
        import_module("qdo.coordination.zookeeper")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "kazoo":
            raise
        message = "ZooKeeper's driver is not installed. Install it"
        raise InvalidArgument(f"{message}: {install_command('zookeeper')}") from error
