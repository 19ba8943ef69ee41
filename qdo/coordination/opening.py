"""From a URL to a coordinator: the one place that knows which coordination services there are.

A service's package is imported when it is asked for, so that neither needs what the other is made of.
"""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import Any

from qdo.coordination.coordinator import Coordinator
from qdo.coordination.paths import GroupPaths
from qdo.coordination.records import valid_name
from qdo.errors import InvalidArgument
from queuey.extras import install_command

SCHEMES = ("local", "zookeeper")


def open_coordinator(url: str, group: str, *, session_timeout: float | None = None, **options: Any) -> Coordinator:  # noqa: ANN401 - each service checks its own
    """Returns a coordinator for a group; ``await coordinator.open()`` connects it.

    Example:
        >>> import asyncio
        >>> from qdo import open_coordinator
        >>> async def main():
        ...     coordinator = open_coordinator("local:", "billing")
        ...     await coordinator.open()
        ...     try:
        ...         return await coordinator.members()
        ...     finally:
        ...         await coordinator.close()
        >>> asyncio.run(main())
        {}

    Args:
        url: ``local:`` (the processes of this user on this machine), ``local:///path/to/file`` (those that use the
            file), or ``zookeeper://host:port,host:port/chroot?option=value``.
        group: Its name, any text.
        session_timeout: Seconds after which a member that was not heard of counts as gone; None: what suits the
            service.
        **options: Those of the service; they win over what the URL says.

    Raises:
        InvalidArgument: The URL names no service, or one whose driver is not installed; or an option is unknown.
    """
    valid_name("group", group)
    scheme, colon, _ = url.partition(":")
    if not colon or scheme not in SCHEMES:
        known = " or ".join(f"{each}:" for each in SCHEMES)
        raise InvalidArgument(f"a coordination service begins with {known}, not {url!r}")
    if scheme == "local":
        from qdo.coordination import local  # noqa: PLC0415 - only needed if it is used

        place, paths = local.parse_url(url, session_timeout=session_timeout, **options), GroupPaths("", group)
        return Coordinator(
            group, partial(local.LocalLink, place, paths.top, paths.may_be_watched), place.session_timeout
        )
    need_zookeeper()
    from qdo.coordination import zookeeper  # noqa: PLC0415 - needs its driver, which may not be installed

    access = zookeeper.parse_url(url, session_timeout=session_timeout, **options)
    context = None if access.tls is None else access.tls.context()
    connect = partial(zookeeper.ZooKeeperLink, access, context)
    return Coordinator(group, connect, access.session_timeout, access.chroot)


def need_zookeeper() -> None:
    """Makes sure that coordination by ZooKeeper can be imported.

    Raises:
        InvalidArgument: Its driver is not installed.
    """
    try:
        import_module("qdo.coordination.zookeeper")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "kazoo":
            raise
        message = "ZooKeeper's driver is not installed. Install it"
        raise InvalidArgument(f"{message}: {install_command('zookeeper')}") from error
