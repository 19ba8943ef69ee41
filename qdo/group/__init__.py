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

There are two kinds of groups. In :mod:`qdo.group.service`, the service itself assigns the partitions. In
:mod:`qdo.group.zookeeper`, the members do, in a tree of nodes. Every method is a coroutine on one event loop;
implementations never block that loop.

**Heartbeats while the program is blocked.** A handler that is busy in a C function, such as a backtracking regular
expression, blocks every thread of its process, so a heartbeat thread does not help. A small process started with
``python -m`` sends the heartbeats instead (:mod:`.heartbeat`; :mod:`.zookeeper.relay` for ZooKeeper; both share
:mod:`.vitals` with the program). It does so only

* while the program exists: it ends as soon as the other end of its socket is closed;
* while the program is not stopped (SIGSTOP): a stopped program loses its session;
* for a limited time after the program's event loop last ran: a program that hangs for longer loses its session.

The helper process does not affect who owns a partition: that is checked where offsets are recorded, whatever keeps the
session alive. Its modules import only the standard library, so that the process is small and starts quickly; so this
package and :mod:`.zookeeper` import nothing themselves.
"""
