"""The client: one method for each API call."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from copy import copy
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack

from msgspec import UNSET, UnsetType

from queuey.api.messages import Explanation, ReadMark
from queuey.api.progress import GroupOffset, Move, Offsets
from queuey.api.queues import Hello, QueueExplanation, QueueInfo
from queuey.client._async.groups import AsyncConsumerGroups
from queuey.client._async.job import send_work
from queuey.client._async.job_queue import AsyncJobQueue
from queuey.client._async.job_results import AsyncJobResults
from queuey.client._async.reading import AsyncReading
from queuey.client._async.resources import AsyncMoving, AsyncNamedMessages, AsyncSchedules
from queuey.client.calls import message_calls, progress_calls, queue_calls, send_calls, service_calls
from queuey.client.calls.call import MAX_ANSWER, MessageLocation, Seconds, seconds
from queuey.client.calls.progress_calls import Progress, Seen
from queuey.client.calls.queue_calls import QueueFields
from queuey.client.calls.send_calls import (
    After,
    AsyncMessages,
    BatchBody,
    Batcher,
    Outgoing,
    SendOptions,
    check_messages_async,
)
from queuey.client.claims.renewers import AsyncClaimRenewer
from queuey.client.credentials.lookup import find_access, find_credential
from queuey.client.credentials.tokens import AskToken, TokenScheme
from queuey.client.errors import ClientError
from queuey.client.http.attempts import AsyncTiming, RetryPolicy
from queuey.client.http.servers import DEFAULT_APPLICATION, opener
from queuey.client.receipts import open_journal
from queuey.client.results import CreatedQueue, Message, NamePage, Queue, QueuePage, RawMessage, Receipt, Unread
from queuey.model.deadletters import Redriven

if TYPE_CHECKING:
    import ssl

    import httpcore2
    import httpx2


class AsyncClient(AsyncReading):
    """A client of the service for async code, in one event loop. Close it, or use it as an async context manager.

    ::

        import asyncio

        from queuey.client import AsyncClient

        async def main():
            async with AsyncClient() as client:  # address and key come from the profile that ``queuey serve`` wrote
                await client.create_queue("orders", partitions=2)
                receipt = await client.send("orders", "a text", key="customer 7")
                async for message in client.read_all("orders", since=0):
                    print(message.time, message.partition, message.body)

        asyncio.run(main())

    Every method argument and field in seconds also accepts a :class:`datetime.timedelta`.

    Args:
        url: ``http://host:port`` or ``http://host:port/v1/application/``; several addresses as a list or separated by
            commas. By default the address in ``QUEUEY_URL``, else the one in the profile that ``queuey serve`` wrote.
        key: The API key; an empty key sends no credential. Without ``key``, ``token``, ``token_file`` and
            ``token_command``, the client uses ``QUEUEY_KEY`` or ``QUEUEY_TOKEN_FILE``, else the profile's credential
            if it talks to the profile's servers.
        token: A user's token instead of a key; or a function, also an async one, that returns a token (a text or a
            :class:`~queuey.client.Token`). The function is called again shortly before the token expires, and once
            when the server refuses the token.
        token_file: A file that contains a token. It is read again when it changes.
        token_command: A program, with its arguments, that prints a token. It runs again when a token function would
            be called again.
        scheme: ``Bearer``, or ``BrowserID`` for assertions.
        application: The application, if the address does not name it.
        profile: A profile, instead of the one that ``QUEUEY_PROFILE`` names or the user's.
        verify: True checks certificates against the system's authorities, a path against those in a file or
            directory, an SSL context by its own rules. False does not check certificates.
        timeout: Seconds to wait for the server at every step; connecting takes at most 5. The policy's ``deadline``
            limits the whole call.
        transport: An async httpx2 transport, or an httpcore2 pool, to use instead of the network.
        timing: The clock, the sleep function and the random numbers.
        receipts: A file that gets a line for every stored message; see :mod:`queuey.client.receipts`. By default no
            file is written.
        max_answer: Max bytes of an answer, before and after decoding. A larger answer raises
            :class:`~queuey.client.InvalidAnswer`.
        idempotent: Give every send an idempotency key if the policy has a deadline: it may then be repeated after any
            failure and is stored once. If False, a send is repeated only if it certainly had no effect.

    Raises:
        InvalidArgument: An address or the credential is not valid, or two credentials are given.
        ReceiptsError: The receipts file cannot be written.
        ProfileError: The profile is needed but cannot be read.

    Every call may also raise :class:`~queuey.client.TokenError` if the function, file or program gives no token.

    Example:
        >>> import asyncio
        >>> from queuey.client import AsyncClient
        >>> async def main():
        ...     async with AsyncClient("http://127.0.0.1:5000", token=lambda: "eyJhbGciOi") as client:
        ...         print(client.application)
        >>> asyncio.run(main())
        queuey
    """

    def __init__(  # noqa: PLR0913 - each is a separate choice, by keyword
        self,
        url: str | Iterable[str] | None = None,
        *,
        key: str | None = None,
        token: str | AskToken | None = None,
        token_file: str | Path | None = None,
        token_command: str | Sequence[str] | None = None,
        scheme: TokenScheme = "Bearer",
        application: str | None = None,
        profile: str | Path | None = None,
        verify: bool | str | Path | ssl.SSLContext = True,
        timeout: Seconds = 10.0,
        retry: RetryPolicy | None = None,
        transport: httpx2.AsyncBaseTransport | httpcore2.AsyncConnectionPool | None = None,
        timing: AsyncTiming | None = None,
        receipts: str | Path | None = None,
        max_answer: int = MAX_ANSWER,
        idempotent: bool = True,
    ) -> None:
        from queuey.client._async.sender import AsyncSender  # noqa: PLC0415 - loads httpcore2 on first use

        credential = find_credential(
            key, token=token, token_file=token_file, token_command=token_command, scheme=scheme
        )
        access = find_access(url, credential, application=application, profile=profile)
        policy, timing = retry or RetryPolicy(), timing or AsyncTiming()
        self.servers = access.servers
        self._idempotent = idempotent
        self._new_key = send_calls.new_idempotency_key if idempotent and policy.deadline else lambda: None
        self._sender = AsyncSender(
            access.servers,
            access.credential,
            policy,
            timing,
            seconds(timeout),
            verify=verify,
            max_answer=max_answer,
            transport=transport,
        )
        self._journal = open_journal(receipts, self.application)
        self._renewer = AsyncClaimRenewer(self._sender.run, send_work, timing.clock)
        self._jobs = AsyncJobResults(self._sender)

    @staticmethod
    def open(
        store: str | Path, *, application: str = DEFAULT_APPLICATION, settings: Mapping[str, str] | None = None
    ) -> AsyncClient:
        """Runs the service in this process, on a store, and returns a client of it.

        See :func:`queuey.embedded.open_async` for the arguments and the errors.

        Example:
            >>> import asyncio
            >>> from queuey.client import AsyncClient
            >>> async def main():
            ...     async with AsyncClient.open("jobs.db") as client:
            ...         _ = await client.create_queue("mails")
            ...         _ = await client.send("mails", "hello")
            >>> asyncio.run(main())
        """
        client: AsyncClient = opener("open_async")(store, application=application, settings=settings or {})
        return client

    def with_retry(self, retry: RetryPolicy) -> Self:
        """Returns a client with the same connections and another retry policy. Closing one closes both."""
        other, sender = copy(self), self._sender.with_policy(retry)
        key = send_calls.new_idempotency_key if self._idempotent and retry.deadline else lambda: None
        vars(other).update(_new_key=key, _sender=sender, _jobs=AsyncJobResults(sender))
        return other

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(server.base for server in self.servers)})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connections and the file of receipts. Jobs that loops still hold are released first."""
        try:
            await self._renewer.close()
        finally:
            await self._sender.close()
            self._journal.close()

    @property
    def application(self) -> str:
        """The application of the client's queues."""
        return self.servers[0].application

    @property
    def scheme(self) -> str | None:
        """The credential's scheme: ``Application`` (a key), ``Bearer`` or ``BrowserID``. None without a credential."""
        return self._sender.authorization.scheme

    # -- queues

    async def create_queue(self, name: str | None = None, **fields: Unpack[QueueFields]) -> CreatedQueue:
        """Creates a queue. If the queue exists with the same fields, the result has ``new`` False.

        Args:
            name: The queue's name. By default the server chooses one.
            fields: See :class:`QueueFields`. None counts as not given.

        Raises:
            QueueExists: The queue exists with other fields.
        """
        return await self._sender.run(queue_calls.create(name, fields))

    async def queues(
        self, *, start: str | None = None, count: bool = False, page_size: int | None = None
    ) -> AsyncIterator[Queue]:
        """Iterates over all queues from the name ``start`` on, inclusive, page by page; ``count`` counts messages."""
        while True:
            page = await self.queue_page(start=start, count=count, limit=page_size)
            for queue in page.queues:
                yield queue
            start = queue_calls.next_start(start, page)
            if start is None:
                return

    async def queue_page(self, *, start: str | None = None, limit: int | None = None, count: bool = False) -> QueuePage:
        """Returns one page of queues, starting at the name ``start``, inclusive."""
        return await self._sender.run(queue_calls.queues(start, limit, count=count))

    async def queue_names(self, *, start: str | None = None, page_size: int | None = None) -> AsyncIterator[str]:
        """Iterates over the names of all queues. This costs the server less than :meth:`queues`."""
        while True:
            page = await self.name_page(start=start, limit=page_size)
            for name in page.names:
                yield name
            start = queue_calls.next_start(start, page)
            if start is None:
                return

    async def name_page(self, *, start: str | None = None, limit: int | None = None) -> NamePage:
        """Returns one page of queue names, starting at ``start``, inclusive."""
        return await self._sender.run(queue_calls.names(start, limit))

    async def update_queue(self, name: str, **fields: Unpack[QueueFields]) -> Queue:
        """Changes the given fields of a queue.

        None resets a field to its default, except ``partitions``, ``type`` and ``consistency``.

        Raises:
            InvalidRequest: A field is not valid, or the number of partitions would shrink.
        """
        return await self._sender.run(queue_calls.update(name, fields))

    async def delete_queue(self, name: str) -> None:
        """Deletes a queue, its messages and its offsets."""
        await self._sender.run(queue_calls.delete(name))

    async def purge_queue(self, name: str) -> None:
        """Removes all messages of a queue. The queue and its offsets stay."""
        await self._sender.run(queue_calls.purge(name))

    async def info(self, name: str) -> QueueInfo:
        """Returns the fields, counts and guarantees of a queue."""
        return await self._sender.run(queue_calls.info(name))

    async def explain_queue(self, name: str) -> QueueExplanation:
        """Returns what determines reads and claims of a queue, and what they see now."""
        return await self._sender.run(queue_calls.explain(name))

    async def rights(self, names: Iterable[str]) -> dict[str, frozenset[str]]:
        """Returns the actions that the credential allows on each of up to 100 queues, which need not exist.

        The API reference lists the actions under ``POST …/_rights``; ``send`` and ``read`` are two of them.
        """
        return await self._sender.run(queue_calls.rights(names))

    # -- sending

    async def send(
        self,
        queue: str,
        body: str | bytes | UnsetType = UNSET,
        *,
        after: After | None = None,
        idempotency_key: str | None = None,
        **options: Unpack[SendOptions],
    ) -> Receipt:
        """Stores one message.

        Args:
            body: Text or bytes. For a JSON value, pass ``json=`` instead.
            after: A message that this one must come after, whichever server stored it.
            idempotency_key: 1 to 255 printable ASCII characters that your program can reproduce after a crash.
                Repeated sends of the same message with the same key store it once and return the same receipt. By
                default the client makes a key for each call. With a key of yours, no trace context is added.
            options: See :class:`Outgoing`.

        Raises:
            TransportError: No answer came. If its ``outcome`` is ``unknown``, the message may have been stored.
            InvalidArgument: The body or the key is not valid.
            KeyReused: The key was already used for another message.

        Example:
            >>> import asyncio
            >>> from queuey.client import AsyncClient
            >>> async def main():
            ...     async with AsyncClient() as client:
            ...         first = await client.send("orders", "six pears", idempotency_key="order 4711")
            ...         again = await client.send("orders", "six pears", idempotency_key="order 4711")
            ...         print(again == first)
            >>> asyncio.run(main())
            True
        """
        message = Outgoing(body, **options)
        # A program that repeats a send under its own key must send identical bytes, so no trace context is added.
        key, traced = (self._new_key(), True) if idempotency_key is None else (idempotency_key, False)
        call = send_calls.send(queue, message, after, key, traced=traced)
        with self._journal.sending(queue, (message,)) as stored:
            (receipt,) = stored(self._jobs.bind(queue, [await self._sender.run(call)]))
        return receipt

    async def send_many(
        self, queue: str, messages: AsyncMessages, *, after: After | None = None, idempotency_key: str | None = None
    ) -> list[Receipt]:
        """Stores messages in order, in as few requests as the server's limits allow.

        Each request is stored completely or not at all. If one fails, the error's ``receipts`` are those of the
        requests before it. With an idempotency key, as for :meth:`send`, all messages must fit into one request, and
        there must be at least one; otherwise it raises :class:`~queuey.client.InvalidArgument`.
        """
        if idempotency_key is not None:
            batch = send_calls.make_batch([message async for message in check_messages_async(messages)])
            return await self._send_chunk(queue, batch, after, idempotency_key)
        receipts: list[Receipt] = []
        try:
            async for receipt in self.send_iter(queue, messages, after=after):
                receipts.append(receipt)  # noqa: PERF401 - keeps the receipts if a later batch fails
        except ClientError as error:
            error.receipts = (*receipts, *error.receipts)
            raise
        return receipts

    async def send_iter(
        self,
        queue: str,
        messages: AsyncMessages,
        *,
        after: After | None = None,
        batch: int = send_calls.MAX_BATCH_MESSAGES,
    ) -> AsyncIterator[Receipt]:
        """Stores any number of messages, keeping at most one batch in memory, and yields their receipts in order.

        Nothing is sent until the receipts are iterated over. A batch is sent when it is full or ``messages`` ends. Its
        messages come after those of the batch before, whichever server stores them, except delayed ones.

        Args:
            messages: Bodies, or :class:`Outgoing` for more than a body.
            after: A message that all of these messages must come after.
        """
        batcher = Batcher(batch)
        async for message in check_messages_async(messages):
            chunk = batcher.add(message)
            if chunk is not None:
                receipts = await self._send_chunk(queue, chunk, after)
                after = send_calls.find_latest(chunk, receipts, after)
                for receipt in receipts:
                    yield receipt
        chunk = batcher.flush()
        if chunk is not None:
            for receipt in await self._send_chunk(queue, chunk, after):
                yield receipt

    async def put(
        self,
        queue: str,
        locations: MessageLocation | Iterable[MessageLocation],
        body: str | bytes | UnsetType = UNSET,
        **options: Unpack[SendOptions],
    ) -> None:
        """Writes one body at the given ids, creating or overwriting each message.

        Args:
            locations: One id or several: ``id``, ``partition:id``, ``(partition, id)``, or a receipt or message.
            body: Text or bytes. For a JSON value, pass ``json=`` instead.
            options: ``ttl``, ``headers`` and ``content_type`` of :class:`Outgoing`.
        """
        message, chosen = Outgoing(body, **options), message_calls.list_locations(locations)
        call = send_calls.put(queue, chosen, message)
        with self._journal.putting(queue, chosen, message):
            await self._sender.run(call)

    # -- messages by id

    async def get(self, queue: str, locations: MessageLocation | Iterable[MessageLocation]) -> list[Message]:
        """Returns messages by id, without the ones that do not exist. The read delay does not apply.

        More than 200 ids are sent in several requests.

        Args:
            locations: One id or several: ``id``, ``partition:id``, ``(partition, id)``, or a receipt or message.
        """
        calls = message_calls.get(queue, message_calls.list_locations(locations))
        return [message for call in calls for message in await self._sender.run(call)]

    async def get_raw(self, queue: str, location: MessageLocation) -> RawMessage:
        """Returns a message with its body as bytes.

        Raises:
            MessageNotFound: The message does not exist.
        """
        return await self._sender.run(message_calls.get_raw(queue, location))

    async def explain(self, queue: str, location: MessageLocation) -> Explanation:
        """Explains why a message is not read or claimed, not yet or not any more.

        Args:
            location: ``id``, ``partition:id``, ``(partition, id)``, or a receipt or message. An id without a partition
                is searched for in every partition. The message need not exist.
        """
        return await self._sender.run(message_calls.explain(queue, location))

    async def delete(self, queue: str, locations: MessageLocation | Iterable[MessageLocation]) -> None:
        """Deletes messages by id, whether or not they exist."""
        for call in message_calls.delete(queue, message_calls.list_locations(locations)):
            await self._sender.run(call)

    async def redrive(
        self,
        queue: str,
        letters: MessageLocation | Iterable[MessageLocation],
        *,
        ttl: Seconds | None = None,
        trusted: bool = False,
        dry_run: bool = False,
    ) -> Redriven:
        """Sends dead letters back to the ends of the partitions that they came from, each once, and removes them.

        Args:
            queue: The queue of dead letters.
            letters: Locations of dead letters in this queue. Others are ignored.
            ttl: TTL of the messages. By default their queue decides.
            trusted: Also send letters to queues that keep their dead letters elsewhere: they may be forged.
        """
        done, places = Redriven(), message_calls.list_locations(letters)
        for call in message_calls.redrive(queue, places, ttl, trusted=trusted, dry_run=dry_run):
            if not done.error:
                done += await self._sender.run(call)
        return done

    # -- claims

    def job_queue(self, queues: str | Iterable[str]) -> AsyncJobQueue:
        """Returns a queue as a job queue: each message is delivered to one worker. This sends no request.

        With several queues, at most 10, a claim takes messages from the first queue in this order that has any.
        """
        return AsyncJobQueue(queues, self._sender, self._renewer)

    def named(self, queue: str) -> AsyncNamedMessages:
        """Returns the messages of a queue by name. A name stands for at most one message. This sends no request."""
        return AsyncNamedMessages(queue, self._sender, self._jobs)

    # -- schedules

    @property
    def schedules(self) -> AsyncSchedules:
        """The schedules of the application: messages that the service posts at certain times."""
        return AsyncSchedules(self._sender)

    # -- moves between queues

    async def move(self, source: str, target: str) -> AsyncMoving:
        """Starts to move the messages that a queue has now to another queue. The service does this in the background.

        While the move runs, the same call returns the same move.

        Raises:
            Conflict: The queue is being moved to another queue, or its messages cannot be claimed.
        """
        move = await self._sender.run(service_calls.begin_move(source, target))
        return self.moving(move.id)

    def moving(self, identifier: str) -> AsyncMoving:
        """Returns a move by its id. This sends no request."""
        return AsyncMoving(identifier, self._sender)

    async def moves(self) -> tuple[Move, ...]:
        """Lists the moves that are running and the last ones that ended, newest first."""
        return await self._sender.run(service_calls.moves())

    # -- consumer offsets

    async def commit(
        self,
        queue: str,
        group: str,
        offsets: Mapping[int, Progress],
        *,
        expected: Mapping[int, Progress | None] | None = None,
    ) -> dict[int, str | None]:
        """Records the offsets of a consumer group.

        Args:
            offsets: The last message processed, or its id, by partition.
            expected: The offset that must be recorded now for a partition's new offset to be set, by partition. None
                means that the partition has no offset yet.

        Returns:
            The recorded offsets of the partitions in ``offsets``.

        Raises:
            OffsetConflict: Another offset was recorded. The error has the present values.
            Conflict: The group is new, and the queue already has 1,000 groups.
        """
        return await self._sender.run(progress_calls.commit(queue, group, offsets, expected))

    async def offsets(self, queue: str, group: str) -> Offsets:
        """Returns the offsets and the lag of a group.

        Raises:
            GroupNotFound: The group has no recorded offsets.
        """
        return await self._sender.run(progress_calls.offsets(queue, group))

    async def lag(self, queue: str, cursors: Mapping[int, Progress | None]) -> dict[int, GroupOffset]:
        """Counts the messages after given positions. The service records nothing.

        Args:
            cursors: The last message processed, or its id, by partition. None means that no message was processed.
        """
        return await self._sender.run(progress_calls.lag(queue, cursors))

    async def groups(self, queue: str) -> tuple[str, ...]:
        """Lists the groups that have recorded offsets."""
        return await self._sender.run(progress_calls.groups(queue))

    async def delete_group(self, queue: str, group: str) -> None:
        """Deletes a group's offsets."""
        await self._sender.run(progress_calls.delete_group(queue, group))

    @property
    def consumer_groups(self) -> AsyncConsumerGroups:
        """The consumer groups of the application whose partitions the service divides among members."""
        return AsyncConsumerGroups(self._sender)

    async def mark_read(self, queue: str, *seen: Seen, cursor: str | None = None, back: bool = False) -> ReadMark:
        """Records how far the caller, a user or an application, has read a queue. Needs the right ``read``.

        Args:
            seen: Messages, as returned by a call or as ``partition:id``. Each marks its partition as read up to and
                including this message. An id without a partition marks all partitions.
            cursor: The cursor of a page, instead of messages. Everything before it was read.
            back: Also accept a mark before the present one.
        """
        return await self._sender.run(progress_calls.mark_read(queue, seen, cursor, back=back))

    async def unread(self, queues: Iterable[str] | None = None, *, limit: int | None = None) -> tuple[Unread, ...]:
        """Counts what the caller has not read, in up to 1,000 queues.

        Args:
            queues: Names of queues. By default all that the credential may read.
            limit: Max messages to count in each queue; 100 by default.
        """
        return await self._sender.run(progress_calls.unread(queues, limit))

    # -- the service

    async def heartbeat(self) -> None:
        """Checks that the service and its store work.

        Raises:
            ServiceUnavailable: The service or its store does not work.
        """
        await self._sender.run(service_calls.heartbeat())

    async def hello(self) -> Hello:
        """Returns the version of the service and the id of its store. Needs no credential."""
        return await self._sender.run(service_calls.hello())

    async def version(self) -> dict[str, Any]:
        """Returns the version of the service."""
        return await self._sender.run(service_calls.version())

    async def _send_chunk(
        self, queue: str, chunk: BatchBody, after: After | None, key: str | None = None
    ) -> list[Receipt]:
        """Stores a batch, by default under a new idempotency key, and writes the receipts to the journal."""
        call = send_calls.send_batch(queue, chunk, after, self._new_key() if key is None else key)
        with self._journal.sending(queue, chunk.messages) as stored:
            return stored(self._jobs.bind(queue, await self._sender.run(call)))
