"""A tree for the processes of one machine: a file, no server, nothing to install.

::

    link                     a session on the tree, and its thread: signs of life, and transactions that have to wait
    nodes                    the table of nodes and of sessions: what is done inside a transaction
    database, wakeup_socket  the file, and how processes wake each other

What cannot be done with a file: a process that is stopped (not killed) in the middle of a transaction keeps all others
from writing until it goes on. No process can record anything meanwhile, so nothing is fenced wrongly; sessions
that end meanwhile are lost.
"""

from __future__ import annotations

from qdo.coordination.local.database import LocalOptions, default_path, parse_url
from qdo.coordination.local.link import LocalLink

__all__ = ["LocalLink", "LocalOptions", "default_path", "parse_url"]
