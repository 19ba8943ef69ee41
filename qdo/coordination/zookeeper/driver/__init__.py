"""The one package that knows kazoo: sessions of ZooKeeper for an event loop, with errors and values of our own."""

from __future__ import annotations

from qdo.coordination.zookeeper.driver.borrowed import BorrowedLink
from qdo.coordination.zookeeper.driver.link import ZooKeeperLink

__all__ = ["BorrowedLink", "ZooKeeperLink"]
