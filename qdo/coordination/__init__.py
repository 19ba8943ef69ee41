"""Coordination: a group's members, the owners of partitions, and how far each partition was processed.

A group's members share out partitions. The coordination service stores what they agree on::

    members   each live member and the queues it wants      gone when its session ends
    leader    the member that sets the target               gone when its session ends
    target    the owner that each partition is to have      set at the version that was read, all of it or nothing
    owners    the owner of each partition                   gone when the owner's session ends
    offsets   how far each partition was processed          kept; each with a version

**Fencing.** Taking a partition and raising its offset's version is one transaction, and a commit is another: it
demands that the partition is still owned by the very session and that the offset has the version of the taking, or of
the last commit since. So a member that was stopped for longer than its session never commits afterwards, whether or not
another member has taken the partition.

**States of a session**::

    connected ──(no answer from the service)──► suspended ──(answers again, in time)──► connected
        │                                           │
        └─────────────(it has ended)────────────────┴──► lost (final)

While it is suspended, it is uncertain what it still owns: take no new work. When it is lost, abandon everything; the
member may join again under a new session.

**Names** of groups and members are any text of 1 to 1,000 characters that UTF-8 can express; others are refused with
``InvalidArgument``. A group is known from the first join or the first offset on until it is forgotten: reading it does
not make it known.

There are two kinds of groups. Groups of :mod:`qdo.coordination.service` are divided by the service itself. Others
stand on the contract in :mod:`qdo.coordination.tree`, a tree of nodes, which :mod:`qdo.coordination.zookeeper`
implements. Every method is a coroutine of one event loop; an implementation does its waiting elsewhere.
"""

from qdo.coordination.coordinator import Coordinator
from qdo.coordination.records import (
    CommittedOffset,
    Event,
    HandlingNote,
    Listen,
    Member,
    OwnedOffset,
    Sight,
    TargetAssignment,
    Versioned,
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
    "OwnedOffset",
    "ServiceCoordinator",
    "ServiceSession",
    "Session",
    "Sight",
    "TargetAssignment",
    "Versioned",
]
