"""Messages of a queue by name."""

from __future__ import annotations

from typing import Unpack

from msgspec import UNSET, UnsetType

from queuey.client._sync.send_call import SendCall
from queuey.client.calls import message_calls, send_calls
from queuey.client.calls.send_calls import Outgoing, SendOptions
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
        ...     queue = (client.create_queue()).name
        ...     named = client.named(queue)
        ...     _ = named.set("reindex", "since Monday")
        ...     _ = named.set("reindex", "since Sunday")
        ...     print((named.get("reindex")).body)
        ...     print([job.body for job in client.job_queue(queue).claim(idle=0)])
        ...     print(named.get("reindex"))
        ...     client.delete_queue(queue)
        since Sunday
        ['since Sunday']
        None
    """

    def __init__(self, queue: str, send: SendCall) -> None:
        self.queue = queue
        self._send = send

    def create(self, name: str, body: str | bytes | UnsetType = UNSET, **options: Unpack[SendOptions]) -> Receipt:
        """Stores a message under a name that is free. If the same message has it, returns that one's receipt.

        If the answer was lost, this is sent again. If the message was acknowledged in between, it is stored again.

        Args:
            name: 1 to 255 characters without ``/``.
            body: Text or bytes; or give any JSON value as ``json=``.
            options: ``ttl``, ``headers`` and ``content_type`` of :class:`Outgoing`.

        Raises:
            NameTaken: Another message has it, and is not acknowledged.
        """
        return self._send(send_calls.write_named("POST", self.queue, name, Outgoing(body, **options)))

    def set(self, name: str, body: str | bytes | UnsetType = UNSET, **options: Unpack[SendOptions]) -> Receipt:
        """Stores a message under a name, in place of the present one. The arguments are those of :meth:`create`.

        A worker that has claimed the old message gets :class:`~queuey.client.ClaimLost` when it acknowledges it. If the
        answer was lost, this is sent again, and may replace a message that another program has set in between.
        """
        return self._send(send_calls.write_named("PUT", self.queue, name, Outgoing(body, **options)))

    def get(self, name: str) -> Message | None:
        """Returns the message that has the name; None: there is none, or it is acknowledged."""
        try:
            [message] = self._send(message_calls.get_named(self.queue, name))
        except NameNotFound:
            return None
        return message

    def delete(self, name: str) -> None:
        """Deletes the message that has the name, whether or not there is one; otherwise as :meth:`set`."""
        self._send(message_calls.delete_named(self.queue, name))
