"""Signs of life from a helper process, for a program whose interpreter is held up.

A handler that is busy inside of a C function, such as a regular expression that backtracks, keeps every thread of its
process from running. A thread that keeps a session alive is no use then, so a small process does it. It is started with
``python -m`` and gives signs of life for its program

* as long as the program is there: it ends as soon as the other end of its socket is closed;
* while the program is not stopped (SIGSTOP): a stopped program loses its session, as before;
* for a time after the program's event loop last ran. A program that hangs for longer loses its session, too.

It decides nothing: ownership of a partition is decided where offsets are recorded, whatever keeps the session alive.

:mod:`.vitals` is what both know. :mod:`.relay` stands between a program and a server of ZooKeeper; :mod:`.heartbeat`
sends the heartbeats of a member of a service's group. Nothing here imports anything but the standard library: the
process is small and starts soon.
"""
