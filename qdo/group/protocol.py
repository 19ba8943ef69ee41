"""Which coordinators and sessions there are."""

from __future__ import annotations

from qdo.group.service import ServiceCoordinator, ServiceSession
from qdo.group.zookeeper.coordinator import ZooKeeperCoordinator
from qdo.group.zookeeper.session import ZooKeeperSession

AnyCoordinator = ZooKeeperCoordinator | ServiceCoordinator
AnySession = ZooKeeperSession | ServiceSession
