"""The contracts of queues, applications, and keys."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from queuey.messages import Key, Queue, QueueSpec, Scope


class Catalogue(ABC):
    """The queues. All changes are linearizable per queue name."""

    @abstractmethod
    async def create_queue(self, application: str, name: str, spec: QueueSpec) -> tuple[Queue, bool]:
        """Creates the queue, or finds it; returns it, and whether this call created it.

        Raises:
            QueueExists: It exists and a field given in ``spec`` differs. Nothing was changed.
            ApplicationNotFound: No such application.
        """

    @abstractmethod
    async def queue(self, application: str, name: str, *, fresh: bool = False) -> Queue:
        """Looks a queue up, from a cache unless ``fresh``.

        The cache may be behind other processes' changes; the calls that take a queue notice that themselves.

        Raises:
            QueueNotFound: No such queue.
        """

    @abstractmethod
    def cached_queue(self, application: str, name: str) -> Queue | None:
        """Returns the result of :meth:`queue` from its cache; None: it would have to ask the backend. Never blocks."""

    @abstractmethod
    async def update_queue(self, queue: Queue, changes: QueueSpec, *, clear: Iterable[str] = ()) -> Queue:
        """Changes the fields that ``changes`` gives and resets those named by ``clear`` to their defaults.

        Raises:
            InvalidRequest: ``partitions`` is lower than now, or differs in a queue that is not plain or has a limit of
                claims by key; ``kind`` differs; that limit begins or ends (code ``InvalidUpdate``); a partition has no
                share of ``max_claimed``.
            QueueChanged: ``queue`` is out of date.
        """

    @abstractmethod
    async def delete_queue(self, queue: Queue) -> None:
        """Deletes the queue, its messages and its offsets in O(1); space is reclaimed later.

        When it has returned, no read shows a message of it, no write to it succeeds, and the name is free.

        Raises:
            QueueChanged: ``queue`` is out of date.
        """

    @abstractmethod
    async def purge_queue(self, queue: Queue) -> Queue:
        """Removes all messages in O(1), delayed ones included; returns the queue with its new ``qid``.

        Raises:
            QueueChanged: ``queue`` is out of date.
        """

    @abstractmethod
    async def list_queues(self, application: str, *, start: str = "", limit: int = 1000) -> list[Queue]:
        """Lists queues by name, ``start`` inclusive, in an order that is the same at every call.

        Cost: proportional to ``limit``, not to the number of queues.
        """


class Applications(ABC):
    """Applications and the SHA-256 hashes of their keys."""

    @abstractmethod
    async def create_application(self, name: str) -> None:
        """Creates an application.

        Raises:
            ApplicationExists: It exists.
        """

    @abstractmethod
    async def application_names(self, *, start: str = "", limit: int | None = None) -> list[str]:
        """Lists applications by name, ``start`` inclusive, in the order of code points; without ``limit`` all of them.

        Cost: proportional to the result, not to the number of applications.
        """

    @abstractmethod
    async def has_application(self, name: str) -> bool:
        """Returns whether the application exists; may answer from a cache that is at most 5 s old."""

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
        """Adds a key by its 32-byte SHA-256; adding one that the application has already gives that one.

        Args:
            application: Owner; :data:`~queuey.messages.OPERATORS`, which need not be created, for an operator's key.
            digest: Its hash.
            expires: Seconds since 1970 when it ends; None: never.
            note: Its purpose.
            scope: Its limits; None: none.

        Raises:
            ApplicationNotFound: No such application.
            Conflict: Another application has this key.
        """

    @abstractmethod
    async def keys(self, application: str) -> list[Key]:
        """Lists the application's keys that are not revoked, expired ones included, oldest first."""

    @abstractmethod
    async def revoke_key(self, application: str, key_id: str) -> None:
        """Removes a key; reading it finds nothing from then on.

        Raises:
            KeyNotFound: The application has no such key.
        """

    @abstractmethod
    async def expire_key(self, application: str, key_id: str, expires: float) -> Key:
        """Sets when a key ends (seconds since 1970), for rotation.

        Raises:
            KeyNotFound: The application has no such key.
        """

    @abstractmethod
    async def find_key(self, digest: bytes) -> Key | None:
        """Finds a key by its hash, expired ones included. Always asks the backend; callers cache."""
