"""Every error that Qdo raises, in one tree.

::

    QdoError
    ├── InvalidArgument         a name, a setting or a position that cannot be accepted
    ├── CoordinationError       the coordination service failed
    │   ├── CoordinationLost        not reachable, or the operation's end is not known; it may be tried again
    │   ├── CoordinationRefused     the service does not allow it with these credentials
    │   ├── SessionLost             the session is over: everything that it held is abandoned
    │   └── CoordinationIncompatible    stored data was written by another version of Qdo
    ├── MemberExists            another live member has this name
    ├── NotOwner                the partition is no longer this member's; nothing was recorded
    ├── MissingRights           the credential may not do all that a worker's options need
    ├── GroupActive             refused while the group has members
    ├── OffsetMoved             an offset is not what was expected; nothing was changed
    ├── StoreChanged            the service has another store than the one that this member began with
    ├── CuratorError            of the queues of Apache Curator
    │   ├── BadItem                 a node holds what these queues do not write
    │   ├── ConsumerFailed          the program's function failed for a message
    │   ├── PutFailed               puts in the background were not stored, or their end is not known
    │   └── QueueStopped            the queue was not started, has lost its session, or is closed
    ├── UnknownTask             a message calls a task that is not here, or not with these arguments
    └── HandlerError            a handler that cannot be used
        └── TimeLimit           a handler that took too long

Errors of the client (``queuey.client``) come through as they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qdo.partitions import Partition


class QdoError(Exception):
    """Base of all errors of this package."""

    code = "Error"

    def __init_subclass__(cls) -> None:
        cls.code = cls.__name__


class InvalidArgument(QdoError):
    """A name, a setting or a position that cannot be accepted. Nothing was done."""


class CoordinationError(QdoError):
    """Something about the coordination service."""


class CoordinationLost(CoordinationError):
    """The service cannot be reached now, or the connection broke before the end of the operation was known."""


class CoordinationRefused(CoordinationError):
    """The service does not accept the credentials, or does not allow this with them. Trying again does not help."""


class SessionLost(CoordinationError):
    """The session is over. What it held is free for others, and nothing more can be done under it."""


class CoordinationIncompatible(CoordinationError):
    """Stored data has a format that this version does not know."""


class MemberExists(QdoError):
    """Another live member of the group has the same name."""


class NotOwner(QdoError):
    """The partition is no longer held, so nothing was recorded for it.

    Args:
        message: What happened, for people.
        partitions: Which ones, where that is known.
    """

    def __init__(self, message: str, partitions: frozenset[Partition] = frozenset()) -> None:
        super().__init__(message)
        self.partitions = partitions


class MissingRights(QdoError):
    """The credential may not do all that a worker's options need. The worker did not join its group."""


class GroupActive(QdoError):
    """Offsets of a group that has members cannot be moved from outside."""


class OffsetMoved(QdoError):
    """An offset is not what the caller expected. Nothing was changed."""


class StoreChanged(QdoError):
    """The service has another store than the one that this member began with. It has to be started again."""


class CuratorError(QdoError):
    """Something about a queue of Apache Curator."""


class BadItem(CuratorError):
    """A node of a queue holds bytes that Curator's queues do not write, or that the serializer does not know.

    Args:
        message: The problem and its place, for people.
        data: The bytes.
    """

    def __init__(self, message: str, data: bytes) -> None:
        super().__init__(message)
        self.data = data


class ConsumerFailed(CuratorError):
    """The function that is called with messages raised an error, which is the cause of this one."""


class PutFailed(CuratorError):
    """Puts in the background were not stored, or it is not known whether they were.

    Args:
        message: What happened, for people.
        messages: The messages of the first 100 failed puts; they can be put again.
        puts: How many puts failed.
    """

    def __init__(self, message: str, messages: list[Any], puts: int = 1) -> None:
        super().__init__(message)
        self.messages = messages
        self.puts = puts


class QueueStopped(CuratorError):
    """The queue was not started, has lost its session, or is closed."""


class HandlerError(QdoError):
    """A handler that cannot be found or used."""


class TimeLimit(HandlerError):
    """A handler did not return in time."""


class UnknownTask(QdoError):
    """A message calls a task that is not here, or with arguments that it does not take; another worker may know it."""
