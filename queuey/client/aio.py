"""The client for async code: the same calls as :class:`queuey.client.Client`, awaited."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from msgspec import UNSET, UnsetType, structs

from queuey.client.calls import (
    message_calls,
    move_calls,
    offset_calls,
    queue_calls,
    read_calls,
    send_calls,
    service_calls,
    unread_calls,
)
from queuey.client.calls.call import ANSWER_BYTES, Call, MessageLocation
from queuey.client.calls.offset_calls import Progress
from queuey.client.calls.queue_calls import QueueFields
from queuey.client.calls.read_calls import Query, ReadOptions
from queuey.client.calls.send_calls import After, BatchBody, Batcher, Outgoing, SendOptions, ToSend
from queuey.client.calls.unread_calls import Seen
from queuey.client.claims.async_jobs import AsyncJobQueue, AsyncKeeper
from queuey.client.credentials.authorization import AsyncAuthorizationHeader
from queuey.client.credentials.lookup import find_access, find_credential
from queuey.client.credentials.tokens import TokenScheme
from queuey.client.errors import ClientError, NotAuthenticated
from queuey.client.following import AsyncFollowing
from queuey.client.http.attempts import AsyncTiming, Attempts
from queuey.client.http.retry import RetryPolicy
from queuey.client.http.servers import ServerChoice
from queuey.client.moving import AsyncMoving
from queuey.client.named import AsyncNamedMessages
from queuey.client.receipts import open_journal
from queuey.client.results import (
    CreatedQueue,
    Explanation,
    GroupOffset,
    Hello,
    Message,
    Move,
    NamePage,
    Offsets,
    Page,
    Queue,
    QueueInfo,
    QueuePage,
    QueueRead,
    RawMessage,
    ReadMark,
    Receipt,
    Unread,
)
from queuey.client.schedules.handles import AsyncSchedules

if TYPE_CHECKING:
    import ssl
    from pathlib import Path

    import httpx2

    from queuey.client.credentials.token_sources import AskToken

T = TypeVar("T")

Messages = Iterable[ToSend] | AsyncIterable[ToSend]


class AsyncClient(AsyncFollowing):
    """A client of the service for async code, with the arguments, results and errors of :class:`queuey.client.Client`.

    ::

        import asyncio

        from queuey.client import AsyncClient

        async def main():
            async with AsyncClient() as client:
                await client.create_queue("orders", partitions=2)
                await client.send("orders", "a text")
                return [message.body async for message in client.read_all("orders", since=0)]

        assert "a text" in asyncio.run(main())

    ``token`` may be an async function, ``transport`` is an async one and ``timing`` an :class:`AsyncTiming`. Use it in
    one event loop.
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
        verify: bool | str | Path | ssl.SSLContext = True,
        timeout: float = 10.0,
        retry: RetryPolicy | None = None,
        transport: httpx2.AsyncBaseTransport | None = None,
        timing: AsyncTiming | None = None,
        receipts: str | Path | None = None,
        max_answer: int = ANSWER_BYTES,
        idempotent: bool = True,
    ) -> None:
        from queuey.client.http.transport import AsyncSender  # noqa: PLC0415 - httpx2 is loaded when it is first needed

        credential = find_credential(
            key, token=token, token_file=token_file, token_command=token_command, scheme=scheme
        )
        access = find_access(url, credential, application=application)
        self.servers = access.servers
        self._timeout = timeout
        self._policy = retry or RetryPolicy()
        self._new_key = send_calls.key_maker(self._policy, idempotent=idempotent)
        self._timing = timing or AsyncTiming()
        self._choice = ServerChoice(
            access.servers,
            cool_down=self._policy.cool_down,
            clock=self._timing.clock,
            draw=self._timing.draw,
        )
        self._sender = AsyncSender(access.servers, verify, max_answer, transport)
        self._authorization = AsyncAuthorizationHeader(access.credential)
        self._journal = open_journal(receipts, access.servers[0].application)
        self._keeper = AsyncKeeper(self._run, self._timing.clock)

    def __repr__(self) -> str:
        """Names the servers and leaves the key out."""
        return f"{type(self).__name__}({', '.join(server.base for server in self.servers)})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connections, and the file of receipts; jobs that loops still hold are released before."""
        try:
            await self._keeper.close()
        finally:
            await self._sender.close()
            self._journal.close()

    @property
    def application(self) -> str:
        """The application of the client's queues."""
        return self.servers[0].application

    @property
    def scheme(self) -> str | None:
        """The scheme of its credential: ``Application`` (a key), ``Bearer`` or ``BrowserID``; None: it has none."""
        return self._authorization.scheme

    # -- queues

    async def create_queue(self, name: str | None = None, **fields: Unpack[QueueFields]) -> CreatedQueue:
        """Creates a queue; see :meth:`Client.create_queue`."""
        return await self._run(queue_calls.create(name, fields))

    async def queues(
        self, *, start: str | None = None, count: bool = False, page_size: int | None = None
    ) -> AsyncIterator[Queue]:
        """Iterates over all queues, page by page; see :meth:`Client.queues`."""
        while True:
            page = await self.queue_page(start=start, count=count, limit=page_size)
            for queue in page.queues:
                yield queue
            start = queue_calls.following(start, page)
            if start is None:
                return

    async def queue_page(self, *, start: str | None = None, limit: int | None = None, count: bool = False) -> QueuePage:
        """Lists one page of queues from ``start`` on, inclusive."""
        return await self._run(queue_calls.queues(start, limit, count=count))

    async def queue_names(self, *, start: str | None = None, page_size: int | None = None) -> AsyncIterator[str]:
        """Iterates over the names of all queues."""
        while True:
            page = await self.name_page(start=start, limit=page_size)
            for name in page.names:
                yield name
            start = queue_calls.following(start, page)
            if start is None:
                return

    async def name_page(self, *, start: str | None = None, limit: int | None = None) -> NamePage:
        """Lists one page of names from ``start`` on, inclusive."""
        return await self._run(queue_calls.names(start, limit))

    async def update_queue(self, name: str, **fields: Unpack[QueueFields]) -> Queue:
        """Changes the fields that are given; see :meth:`Client.update_queue`."""
        return await self._run(queue_calls.update(name, fields))

    async def delete_queue(self, name: str) -> None:
        """Deletes a queue with its messages and offsets."""
        await self._run(queue_calls.delete(name))

    async def purge_queue(self, name: str) -> None:
        """Removes all messages of a queue; the queue and its offsets stay."""
        await self._run(queue_calls.purge(name))

    async def info(self, name: str) -> QueueInfo:
        """Returns the fields, counts and guarantees of a queue."""
        return await self._run(queue_calls.info(name))

    async def rights(self, names: Iterable[str]) -> dict[str, frozenset[str]]:
        """Returns what the caller may do with queues of these names; see :meth:`Client.rights`."""
        return await self._run(queue_calls.rights(names))

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
        """Stores one message; see :meth:`Client.send`."""
        message = Outgoing(body, **options)
        # Sent again under the program's own key, a message must be the same.
        key, traced = (self._new_key(), True) if idempotency_key is None else (idempotency_key, False)
        call = send_calls.send(queue, message, after, key, traced=traced)
        with self._journal.sending(queue, (message,)) as sending:
            (receipt,) = sending.stored([await self._run(call)])
        return receipt

    async def send_many(
        self, queue: str, messages: Messages, *, after: After | None = None, idempotency_key: str | None = None
    ) -> list[Receipt]:
        """Stores messages in as few requests as the server's limits allow; see :meth:`Client.send_many`."""
        if idempotency_key is not None:
            batch = send_calls.one_batch([message async for message in _each(messages)])
            return await self._send_chunk(queue, batch, after, idempotency_key)
        receipts: list[Receipt] = []
        try:
            async for receipt in self.send_iter(queue, messages, after=after):
                receipts.append(receipt)  # noqa: PERF401 - what was stored is needed when a later batch fails
        except ClientError as error:
            error.receipts = (*receipts, *error.receipts)
            raise
        return receipts

    async def send_iter(
        self,
        queue: str,
        messages: Messages,
        *,
        after: After | None = None,
        batch: int = send_calls.BATCH_MESSAGES,
    ) -> AsyncIterator[Receipt]:
        """Stores any number of messages and yields their receipts; see :meth:`Client.send_iter`."""
        batcher = Batcher(batch)
        async for message in _each(messages):
            chunk = batcher.add(message)
            if chunk is not None:
                receipts = await self._send_chunk(queue, chunk, after)
                after = send_calls.latest(chunk, receipts, after)
                for receipt in receipts:
                    yield receipt
        chunk = batcher.rest()
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
        """Writes one body at the given ids; see :meth:`Client.put`."""
        message, chosen = Outgoing(body, **options), message_calls.several(locations)
        call = send_calls.put(queue, chosen, message)
        with self._journal.putting(queue, chosen, message):
            await self._run(call)

    # -- reading

    async def read(self, queue: str, *, wait: float = 0.0, **options: Unpack[ReadOptions]) -> Page:
        """Reads one page of messages by time; see :meth:`Client.read`."""
        return await self._run(read_calls.read(Query(queue=queue, **options), wait))

    async def read_pages(self, queue: str, **options: Unpack[ReadOptions]) -> AsyncIterator[Page]:
        """Reads page after page until there are no more messages; ``limit`` is the size of a page."""
        query: Query | None = Query(queue=queue, **options)
        while query is not None:
            page = await self._run(read_calls.read(query))
            yield page
            query = read_calls.onward(query, page)

    async def read_all(self, queue: str, **options: Unpack[ReadOptions]) -> AsyncIterator[Message]:
        """Reads all messages that are stored now, page by page; ``limit`` is the size of a page."""
        async for page in self.read_pages(queue, **options):
            for message in page.messages:
                yield message

    async def read_queues(self, queries: Iterable[str | Query], *, wait: float = 0.0) -> tuple[QueueRead, ...]:
        """Reads one page of each of several queues in one call; see :meth:`Client.read_queues`."""
        return await self._run(read_calls.read_queues(queries, wait))

    # -- messages by id

    async def get(self, queue: str, locations: MessageLocation | Iterable[MessageLocation]) -> list[Message]:
        """Fetches messages by id, missing ones left out; see :meth:`Client.get`."""
        calls = message_calls.get(queue, message_calls.several(locations))
        return [message for call in calls for message in await self._run(call)]

    async def get_raw(self, queue: str, location: MessageLocation) -> RawMessage:
        """Fetches one message as its bytes; see :meth:`Client.get_raw`."""
        return await self._run(message_calls.get_raw(queue, location))

    async def explain(self, queue: str, location: MessageLocation) -> Explanation:
        """Returns why a message is not read or claimed; see :meth:`Client.explain`."""
        return await self._run(message_calls.explain(queue, location))

    async def delete(self, queue: str, locations: MessageLocation | Iterable[MessageLocation]) -> None:
        """Deletes messages by id, whether or not they exist."""
        for call in message_calls.delete(queue, message_calls.several(locations)):
            await self._run(call)

    # -- claims

    def job_queue(self, queues: str | Iterable[str]) -> AsyncJobQueue:
        """Returns a queue as a job queue; see :meth:`Client.job_queue`. This asks the server nothing."""
        return AsyncJobQueue(queues, self._run, self._keeper, self._policy, self._timing)

    def named(self, queue: str) -> AsyncNamedMessages:
        """Returns the messages of a queue by name: a name stands for one message at most. This sends no request."""
        return AsyncNamedMessages(queue, self._run)

    # -- schedules

    @property
    def schedules(self) -> AsyncSchedules:
        """The schedules of the application: messages that the service posts at certain times."""
        return AsyncSchedules(self._run)

    # -- moves between queues

    async def move(self, source: str, target: str) -> AsyncMoving:
        """Begins to move the messages that a queue has now to another one; see :meth:`Client.move`."""
        return self.moving((await self._run(move_calls.begin(source, target))).id)

    def moving(self, identifier: str) -> AsyncMoving:
        """Returns a move by its id. This asks the server nothing."""
        return AsyncMoving(identifier, self._run, self._timing)

    async def moves(self) -> tuple[Move, ...]:
        """Lists moves; see :meth:`Client.moves`."""
        return await self._run(move_calls.moves())

    # -- consumer offsets

    async def commit(
        self,
        queue: str,
        group: str,
        offsets: Mapping[int, Progress],
        *,
        expected: Mapping[int, Progress | None] | None = None,
    ) -> dict[int, str | None]:
        """Records how far a consumer group has processed partitions; see :meth:`Client.commit`."""
        return await self._run(offset_calls.commit(queue, group, offsets, expected))

    async def offsets(self, queue: str, group: str) -> Offsets:
        """Returns how far a group has come, and how far it is behind; see :meth:`Client.offsets`."""
        return await self._run(offset_calls.offsets(queue, group))

    async def lag(self, queue: str, cursors: Mapping[int, Progress | None]) -> dict[int, GroupOffset]:
        """Returns the number of messages behind given cursors; see :meth:`Client.lag`."""
        return await self._run(offset_calls.lag(queue, cursors))

    async def groups(self, queue: str) -> tuple[str, ...]:
        """Lists the groups that have recorded offsets."""
        return await self._run(offset_calls.groups(queue))

    async def delete_group(self, queue: str, group: str) -> None:
        """Deletes a group's offsets."""
        await self._run(offset_calls.delete_group(queue, group))

    async def mark_read(self, queue: str, *seen: Seen, cursor: str | None = None, back: bool = False) -> ReadMark:
        """Marks what the caller has read of a queue; see :meth:`Client.mark_read`."""
        return await self._run(unread_calls.mark_read(queue, seen, cursor, back=back))

    async def unread(self, queues: Iterable[str] | None = None, *, limit: int | None = None) -> tuple[Unread, ...]:
        """Counts what the caller has not read; see :meth:`Client.unread`."""
        return await self._run(unread_calls.unread(queues, limit))

    # -- the service

    async def heartbeat(self) -> None:
        """Returns if the service and its store work; see :meth:`Client.heartbeat`."""
        await self._run(service_calls.heartbeat())

    async def hello(self) -> Hello:
        """Returns what runs there, and the id of its store; see :meth:`Client.hello`."""
        return await self._run(service_calls.hello())

    async def version(self) -> dict[str, Any]:
        """Returns the version of the service."""
        return await self._run(service_calls.version())

    async def _send_chunk(
        self, queue: str, chunk: BatchBody, after: After | None, key: str | None = None
    ) -> list[Receipt]:
        call = send_calls.send_batch(queue, chunk, after, self._new_key() if key is None else key)
        with self._journal.sending(queue, chunk.messages) as sending:
            return sending.stored(await self._run(call))

    async def _run(self, call: Call[T], within: float | None = None) -> T:
        """Sends a call until it is answered or may not be sent again."""
        if call.span is not None:
            with call.span:
                return await self._run(structs.replace(call, span=None), within)
        timing = self._timing
        policy, timeout = self._policy.limited(within), self._timeout if within is None else min(self._timeout, within)
        attempts = Attempts(call, self._choice, policy, timeout, clock=timing.clock, draw=timing.draw)
        renewed = False
        while True:
            with attempts.noting():
                header = await self._authorization.header()
            try:
                answer = await self._sender.send(call, attempts.server, attempts.url, attempts.times, header)
                return attempts.read(answer)
            except NotAuthenticated:
                # This attempt was not carried out, whatever the call is.
                with attempts.noting():
                    if renewed or not await self._authorization.renew(header):
                        raise
                renewed = True
                continue
            except ClientError as error:
                pause = attempts.pause_after(error)
                if pause is None:
                    raise
            if pause:
                await timing.sleep(pause)


async def _each(messages: Messages) -> AsyncIterator[ToSend]:
    if isinstance(messages, AsyncIterable):
        async for message in messages:
            yield message
    else:
        for message in send_calls.several(messages):
            yield message
