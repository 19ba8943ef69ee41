"""Coordination: a group's members, the owners of partitions, and how far each partition was processed.

The members of a group divide partitions among themselves. The coordination service stores the group's state::

    members   each live member and its subscription         deleted when its session ends
    leader    the member that sets the target               deleted when its session ends
    target    the planned owner of each partition           replaced as a whole, at the version that was read
    owners    the present owner of each partition           deleted when the owner's session ends
    offsets   how far each partition was processed          persistent; each with a version

**Fencing.** One transaction claims a partition and raises the version of its offset. A commit is another transaction:
it succeeds only if the same session still owns the partition and the offset has the version of the claim, or of the
last commit since. So a member that was stopped for longer than its session timeout can never commit afterwards, whether
or not another member has claimed the partition.

**States of a session**::

    connected ──(no answer from the service)──► suspended ──(answers again, in time)──► connected
        │                                           │
        └───────────(the session ended)─────────────┴──► lost (final)

While a session is suspended, it may no longer own its partitions: start no new work. When it is lost, abandon all work.
The member may join again with a new session.

**Names** of groups and members have 1 to 1,000 characters that UTF-8 can encode; other names raise
``InvalidArgument``. A group exists from its first join or first offset until it is forgotten. Reading a group does not
create it.

There are two kinds of groups. In :mod:`qdo.coordination.service`, the service itself assigns the partitions. The other
kind is built on the contract in :mod:`qdo.coordination.tree`, a tree of nodes that :mod:`qdo.coordination.zookeeper`
implements. Every method is a coroutine on one event loop; implementations never block that loop.
"""

from qdo.coordination.coordinator import Coordinator
from qdo.coordination.records import (
    CommittedOffset,
    Event,
    HandlingNote,
    Listen,
    Member,
    SessionOffset,
    TargetAssignment,
    Versioned,
    Visibility,
)
from qdo.coordination.service import ServiceCoordinator, ServiceSession
from qdo.coordination.session import Session

AnyCoordinator = Coordinator | ServiceCoordinator
AnySession = Session | ServiceSession

__all__ = [
    "AnyCoordinator",
    "AnySession",
    "CommittedOffset",
    "Coordinator",
    "Event",
    "HandlingNote",
    "Listen",
    "Member",
    "ServiceCoordinator",
    "ServiceSession",
    "Session",
    "SessionOffset",
    "TargetAssignment",
    "Versioned",
    "Visibility",
]
