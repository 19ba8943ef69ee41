"""Which coordinators and sessions there are."""

from __future__ import annotations

from qdo.group.service import ServiceCoordinator, ServiceSession
from qdo.group.zookeeper.coordinator import Coordinator
from qdo.group.zookeeper.session import Session

AnyCoordinator = Coordinator | ServiceCoordinator
AnySession = Session | ServiceSession
