"""Messages of a queue by name, for threads and for async code."""

from __future__ import annotations

from typing import Unpack

from msgspec import UNSET, UnsetType

from queuey.client.calls import message_calls, send_calls
from queuey.client.calls.send_calls import Outgoing, SendOptions
from queuey.client.claims.async_jobs import AsyncRun
from queuey.client.claims.keeper import SendCall
from queuey.client.errors import NameNotFound
from queuey.client.results import Message, Receipt


class NamedMessages:
    """The messages of a queue by name: a name stands for one message at most, the newest that was set.

    Made by :meth:`Client.named <queuey.client.Client.named>`. Safe to use from several threads.

    Attributes:
        queue: The queue's name.

    Example:
        >>> from queuey.client import Client
        >>> with Client() as client:
        ...     queue = client.create_queue().name
        ...     named = client.named(queue)
        ...     _ = named.set("reindex", "since Monday")
        ...     _ = named.set("reindex", "since Sunday")
        ...     print(named.get("reindex").body)
        ...     print([job.body for job in client.job_queue(queue).claim(idle=0)])
        ...     print(named.get("reindex"))
        ...     client.delete_queue(queue)
        since Sunday
        ['since Sunday']
        None
    """

    def __init__(self, queue: str, run: SendCall) -> None:
        self.queue = queue
        self._run = run

    def create(self, name: str, body: str | bytes | UnsetType = UNSET, **options: Unpack[SendOptions]) -> Receipt:
        """Stores a message under a name that is free. If the same message has it, that one's receipt comes back.

        If the answer was lost, this is sent again. If the message was acknowledged in between, it is stored again.

        Args:
            name: 1 to 255 characters without ``/``.
            body: Text or bytes; or give any JSON value as ``json=``.
            options: ``ttl``, ``headers`` and ``content_type`` of :class:`Outgoing`.

        Raises:
            NameTaken: Another message has it, and is not acknowledged.
        """
        return self._run(send_calls.write_named("POST", self.queue, name, Outgoing(body, **options)))

    def set(self, name: str, body: str | bytes | UnsetType = UNSET, **options: Unpack[SendOptions]) -> Receipt:
        """Stores a message under a name, in place of the one that it has. The arguments are those of :meth:`create`.

        Who has claimed the message before gets :class:`ClaimLost` when acknowledging it. If the answer was lost, this
        is sent again, and may replace what somebody else has set in between.
        """
        return self._run(send_calls.write_named("PUT", self.queue, name, Outgoing(body, **options)))

    def get(self, name: str) -> Message | None:
        """Returns the message that a name stands for; None: none, or it is acknowledged."""
        try:
            [message] = self._run(message_calls.get_named(self.queue, name))
        except NameNotFound:
            return None
        return message

    def delete(self, name: str) -> None:
        """Deletes the message that a name stands for, whether or not there is one; otherwise as :meth:`set`."""
        self._run(message_calls.delete_named(self.queue, name))


class AsyncNamedMessages:
    """Is :class:`NamedMessages` for async code.

    Made by :meth:`AsyncClient.named <queuey.client.AsyncClient.named>`.

    Attributes:
        queue: The queue's name.

    Example:
        >>> import asyncio
        >>> from queuey.client import AsyncClient
        >>> async def replace_one() -> str:
        ...     async with AsyncClient() as client:
        ...         queue = (await client.create_queue()).name
        ...         named = client.named(queue)
        ...         await named.set("reindex", "since Monday")
        ...         await named.set("reindex", "since Sunday")
        ...         found = await named.get("reindex")
        ...         await client.delete_queue(queue)
        ...         return found.body
        >>> asyncio.run(replace_one())
        'since Sunday'
    """

    def __init__(self, queue: str, run: AsyncRun) -> None:
        self.queue = queue
        self._run = run

    async def create(self, name: str, body: str | bytes | UnsetType = UNSET, **options: Unpack[SendOptions]) -> Receipt:
        """See :meth:`NamedMessages.create`."""
        return await self._run(send_calls.write_named("POST", self.queue, name, Outgoing(body, **options)))

    async def set(self, name: str, body: str | bytes | UnsetType = UNSET, **options: Unpack[SendOptions]) -> Receipt:
        """See :meth:`NamedMessages.set`."""
        return await self._run(send_calls.write_named("PUT", self.queue, name, Outgoing(body, **options)))

    async def get(self, name: str) -> Message | None:
        """See :meth:`NamedMessages.get`."""
        try:
            [message] = await self._run(message_calls.get_named(self.queue, name))
        except NameNotFound:
            return None
        return message

    async def delete(self, name: str) -> None:
        """See :meth:`NamedMessages.delete`."""
        await self._run(message_calls.delete_named(self.queue, name))
