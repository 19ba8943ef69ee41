"""A helper process that keeps a session alive while the program's interpreter is blocked.

A handler that is busy in a C function, such as a backtracking regular expression, blocks every thread of its process,
so a heartbeat thread does not help. A small process started with ``python -m`` sends the heartbeats instead. It does so
only

* while the program exists: it ends as soon as the other end of its socket is closed;
* while the program is not stopped (SIGSTOP): a stopped program loses its session;
* for a limited time after the program's event loop last ran: a program that hangs for longer loses its session.

The helper process does not affect who owns a partition: that is checked where offsets are recorded, whatever keeps the
session alive.

:mod:`.vitals` is the shared memory of both processes. :mod:`.relay` passes data between a program and a ZooKeeper
server. :mod:`.heartbeat` sends the heartbeats of a member of a service's group. These modules import only the standard
library, so that the process is small and starts quickly.
"""
