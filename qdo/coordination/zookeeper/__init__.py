"""Coordination by ZooKeeper: members on any number of machines.

Importing this needs kazoo (``pip install 'queuey[zookeeper]'``). Layout: :mod:`.tree`. Fencing: :mod:`.ownership`.
"""

from __future__ import annotations

from qdo.coordination.zookeeper.access import Access, Digest, Sasl, Tls
from qdo.coordination.zookeeper.coordinator import ZooKeeperCoordinator
from qdo.coordination.zookeeper.url import parse as parse_url

__all__ = ["Access", "Digest", "Sasl", "Tls", "ZooKeeperCoordinator", "parse_url"]
