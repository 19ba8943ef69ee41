"""The errors that Qdo raises.

::

    QdoError
    ├── InvalidArgument         a name, a setting or a position is not valid
    ├── CoordinationError       the coordination service failed
    │   ├── CoordinationLost        unreachable, or the outcome of the operation is unknown; it can be retried
    │   ├── CoordinationRefused     the service does not allow this with these credentials
    │   ├── SessionLost             the session has expired: everything it held is released
    │   └── CoordinationIncompatible    stored data was written by another version of Qdo
    ├── MemberExists            another live member has this name
    ├── NotOwner                this member no longer owns the partition; nothing was recorded
    ├── MissingRights           the credential lacks rights that the worker's options need
    ├── GroupActive             refused while the group has members
    ├── OffsetMoved             an offset differs from the expected one; nothing was changed
    ├── StoreChanged            the service now uses another store than when this member started
    ├── CuratorError            a queue of Apache Curator failed
    │   ├── BadItem                 a node holds data that these queues do not write
    │   ├── ConsumerFailed          the program's function failed for a message
    │   ├── PutFailed               background puts were not stored, or their outcome is unknown
    │   └── QueueStopped            the queue was not started, has lost its session, or is closed
    ├── UnknownTask             a message calls an unknown task, or passes arguments that the task does not take
    └── HandlerError            the handler cannot be used
        └── TimeLimit           the handler took too long

Errors of the client (``queuey.client``) are passed on unchanged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qdo.partitions import Partition


class QdoError(Exception):
    """Base class of all errors of this package."""

    code = "Error"

    def __init_subclass__(cls) -> None:
        cls.code = cls.__name__


class InvalidArgument(QdoError):
    """A name, a setting or a position is not valid. Nothing was done."""


class CoordinationError(QdoError):
    """The coordination service failed."""


class CoordinationLost(CoordinationError):
    """The service is unreachable, or the connection broke before the outcome of the operation was known."""


class CoordinationRefused(CoordinationError):
    """The service rejects the credentials, or they lack a permission. Retrying does not help."""


class SessionLost(CoordinationError):
    """The session has expired. Others may take what it held, and it cannot be used any more."""


class CoordinationIncompatible(CoordinationError):
    """Stored data has a format that this version cannot read."""


class MemberExists(QdoError):
    """Another live member of the group has the same name."""


class NotOwner(QdoError):
    """This member no longer owns the partition, so nothing was recorded for it.

    Args:
        message: Description of the error.
        partitions: The partitions, if they are known.
    """

    def __init__(self, message: str, partitions: frozenset[Partition] = frozenset()) -> None:
        super().__init__(message)
        self.partitions = partitions


class MissingRights(QdoError):
    """The credential lacks rights that the worker's options need. The worker did not join its group."""


class GroupActive(QdoError):
    """The offsets of a group cannot be moved from outside while the group has members."""


class OffsetMoved(QdoError):
    """An offset differs from the one that the caller expected. Nothing was changed."""


class StoreChanged(QdoError):
    """The service now uses another store than when this member started. Restart the member."""


class CuratorError(QdoError):
    """A queue of Apache Curator failed."""


class BadItem(CuratorError):
    """A node of a queue holds bytes that Curator's queues do not write, or that the serializer cannot read.

    Args:
        message: Description of the problem, with the node's path.
        data: The node's bytes.
    """

    def __init__(self, message: str, data: bytes) -> None:
        super().__init__(message)
        self.data = data


class ConsumerFailed(CuratorError):
    """The function that consumes messages raised an error, which is the ``__cause__`` of this one."""


class PutFailed(CuratorError):
    """Background puts were not stored, or their outcome is unknown.

    Args:
        message: Description of the error.
        messages: The messages of the first 100 failed puts. They can be put again.
        puts: Number of failed puts.
    """

    def __init__(self, message: str, messages: list[Any], puts: int = 1) -> None:
        super().__init__(message)
        self.messages = messages
        self.puts = puts


class QueueStopped(CuratorError):
    """The queue was not started, has lost its session, or is closed."""


class HandlerError(QdoError):
    """The handler cannot be found or used."""


class TimeLimit(HandlerError):
    """The handler did not return in time."""


class UnknownTask(QdoError):
    """A message calls an unknown task, or passes arguments it does not take. Another worker may accept the message."""
