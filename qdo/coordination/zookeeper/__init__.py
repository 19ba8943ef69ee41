"""Coordination by ZooKeeper: members on any number of machines.

Importing this needs kazoo (the extra ``zookeeper``). Layout: :mod:`qdo.coordination.zookeeper.paths`.
Fencing: :mod:`qdo.coordination.zookeeper.session`.
"""

from __future__ import annotations

from qdo.coordination.zookeeper.connection_options import ConnectionOptions, DigestLogin, SaslLogin, TlsOptions
from qdo.coordination.zookeeper.connection_options import parse as parse_url
from qdo.coordination.zookeeper.coordinator import ZooKeeperCoordinator

__all__ = ["ConnectionOptions", "DigestLogin", "SaslLogin", "TlsOptions", "ZooKeeperCoordinator", "parse_url"]
