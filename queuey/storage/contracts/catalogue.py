"""The contracts of queues, applications, and keys."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from queuey.model.messages import Key, Queue, QueueSpec, Scope


class Catalogue(ABC):
    """The queues. All changes are linearizable per queue name."""

    @abstractmethod
    async def create_queue(self, application: str, name: str, spec: QueueSpec) -> tuple[Queue, bool]:
        """Creates a queue if it does not exist. Returns the queue and whether this call created it.

        Raises:
            QueueExists: The queue exists and a field set in ``spec`` differs. Nothing was changed.
            ApplicationNotFound: The application does not exist.
        """

    @abstractmethod
    async def queue(self, application: str, name: str, *, fresh: bool = False) -> Queue:
        """Looks up a queue, in a cache unless ``fresh``.

        The cache may lag behind changes of other processes; the calls that take a queue detect that themselves.

        Raises:
            QueueNotFound: The queue does not exist.
        """

    @abstractmethod
    def cached_queue(self, application: str, name: str) -> Queue | None:
        """Returns the result of :meth:`queue` if it is cached, or None. Never blocks."""

    @abstractmethod
    async def update_queue(self, queue: Queue, changes: QueueSpec, *, clear: Iterable[str] = ()) -> Queue:
        """Sets the fields that ``changes`` gives, and resets the fields named in ``clear`` to their defaults.

        Raises:
            InvalidRequest: With the code ``InvalidUpdate``: ``partitions`` is lower than now, or differs in a queue
                that is not plain or has ``max_claimed_per_key``; ``kind`` differs; or ``max_claimed_per_key`` is added
                or removed. With another code: ``max_claimed`` is lower than the number of partitions.
            QueueChanged: ``queue`` is out of date.
        """

    @abstractmethod
    async def delete_queue(self, queue: Queue) -> None:
        """Deletes a queue, its messages and its offsets in O(1). Space is reclaimed later.

        Afterwards no read shows its messages, no write to it succeeds, and its name is free.

        Raises:
            QueueChanged: ``queue`` is out of date.
        """

    @abstractmethod
    async def purge_queue(self, queue: Queue) -> Queue:
        """Removes all messages in O(1), including delayed ones. Returns the queue with its new ``qid``.

        Raises:
            QueueChanged: ``queue`` is out of date.
        """

    @abstractmethod
    async def list_queues(self, application: str, *, start: str = "", limit: int = 1000) -> list[Queue]:
        """Lists queues by name from ``start`` (inclusive) on, in a stable order.

        Cost: proportional to ``limit``, not to the number of queues.
        """


class Applications(ABC):
    """Applications and the SHA-256 hashes of their keys."""

    @abstractmethod
    async def create_application(self, name: str) -> None:
        """Creates an application.

        Raises:
            ApplicationExists: The application exists.
            InvalidRequest: People cannot read the name: see :func:`queuey.model.messages.is_readable`.
        """

    @abstractmethod
    async def application_names(self, *, start: str = "", limit: int | None = None) -> list[str]:
        """Lists applications by name from ``start`` (inclusive) on, in code point order.

        If ``limit`` is None, all are returned.

        Cost: proportional to the result, not to the number of applications.
        """

    @abstractmethod
    async def has_application(self, name: str) -> bool:
        """Returns whether an application exists. The answer may come from a cache at most 5 s old."""

    @abstractmethod
    async def add_key(
        self,
        application: str,
        digest: bytes,
        *,
        expires: float | None = None,
        note: str = "",
        scope: Scope | None = None,
    ) -> Key:
        """Adds a key by its SHA-256. If the application has the key already, that key is returned unchanged.

        Args:
            application: Owner of the key. For an operator's key it is :data:`~queuey.model.messages.OPERATORS`, which
                does not have to be created.
            digest: SHA-256 of the key (32 bytes).
            expires: When the key expires (seconds since 1970), or None if it never does.
            note: Description of the key's purpose.
            scope: Restrictions of the key, or None for an unrestricted key.

        Raises:
            ApplicationNotFound: The application does not exist.
            Conflict: Another application has this key.
            InvalidRequest: People cannot read the note.
        """

    @abstractmethod
    async def keys(self, application: str) -> list[Key]:
        """Lists an application's keys, oldest first. Expired keys are included, revoked ones are not."""

    @abstractmethod
    async def revoke_key(self, application: str, key_id: str) -> None:
        """Removes a key. Afterwards :meth:`find_key` does not find it.

        Raises:
            KeyNotFound: The application does not have this key.
        """

    @abstractmethod
    async def expire_key(self, application: str, key_id: str, expires: float) -> Key:
        """Sets when a key expires (seconds since 1970), for rotation.

        Raises:
            KeyNotFound: The application does not have this key.
        """

    @abstractmethod
    async def find_key(self, digest: bytes) -> Key | None:
        """Finds a key by its hash, even if it has expired. Always queries the backend; callers cache."""
