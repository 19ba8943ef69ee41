"""Groups whose partitions the service divides: no further service is needed, and members in any language take part.

``docs/architecture-groups.md`` has the rules that a member follows.
"""

from qdo.coordination.service.coordinator import ServiceCoordinator
from qdo.coordination.service.session import ServiceSession

__all__ = ["ServiceCoordinator", "ServiceSession"]
