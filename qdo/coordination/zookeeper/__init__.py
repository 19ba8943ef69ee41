"""Coordination by ZooKeeper: members on any number of machines.

Importing this needs kazoo (``pip install 'queuey[zookeeper]'``). Layout: :mod:`.tree`. Fencing: :mod:`.ownership`.
"""

from __future__ import annotations

from typing import Any

from qdo.coordination.zookeeper.access import Access, Digest, Sasl, Tls
from qdo.coordination.zookeeper.coordinator import ZooKeeperCoordinator
from qdo.coordination.zookeeper.url import parse

__all__ = ["Access", "Digest", "Sasl", "Tls", "ZooKeeperCoordinator", "from_url"]


def from_url(
    url: str,
    group: str,
    *,
    session_timeout: float | None = None,
    **options: Any,  # noqa: ANN401 - checked where they are read
) -> ZooKeeperCoordinator:
    """Returns a coordinator for ``zookeeper://host:port,host:port/chroot?option=value``; see :mod:`.url`.

    Raises:
        InvalidArgument: Something of it cannot be used.
    """
    return ZooKeeperCoordinator(parse(url, session_timeout=session_timeout, **options), group)
