"""Coordination of the processes of one machine: a file, no server, nothing to install.

::

    coordinator            the contract; each call is handed to the session thread and awaited
    session_thread         a member's session, and the one thread of a coordinator: transactions, signs of life, events
    transactions           what is done inside a transaction
    database, wakeup_socket  the file, and how processes wake each other

What cannot be done with a file: a process that is stopped (not killed) in the middle of a transaction keeps all others
from writing until it goes on. No process can record anything meanwhile, so nothing is fenced wrongly; sessions
that end meanwhile are lost.
"""

from qdo.coordination.local.coordinator import LocalCoordinator
from qdo.coordination.local.options import LocalOptions, default_path, parse_url

__all__ = ["LocalCoordinator", "LocalOptions", "default_path", "parse_url"]
