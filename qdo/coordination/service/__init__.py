"""Groups whose partitions the service assigns. They need no other service, and members may use any language.

``docs/architecture-groups.md`` has the rules that a member follows.
"""

from qdo.coordination.service.coordinator import ServiceCoordinator
from qdo.coordination.service.session import ServiceSession

__all__ = ["ServiceCoordinator", "ServiceSession"]
