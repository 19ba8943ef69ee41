"""Live reads of both clients: by long polls, page by page, and by streams."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import TYPE_CHECKING, TypeVar, Unpack

from queuey.client.calls.call import Call, Point
from queuey.client.calls.read_calls import ReadOptions
from queuey.client.credentials.authorization import AsyncAuthorizationHeader, AuthorizationHeader
from queuey.client.errors import ClientError
from queuey.client.http.attempts import AsyncTiming, Attempts, Notice, Patience, Timing
from queuey.client.http.retry import RetryPolicy
from queuey.client.http.servers import ServerChoice
from queuey.client.results import Message, Page, StreamedMessage
from queuey.client.streaming import Streaming
from queuey.client.tailing import Tailing, start_query

if TYPE_CHECKING:
    from queuey.client.http.transport import AsyncSender, Sender

T = TypeVar("T")


class Following:
    """Live reads of :class:`~queuey.client.Client`."""

    _timing: Timing
    _policy: RetryPolicy
    _choice: ServerChoice
    _timeout: float
    _authorization: AuthorizationHeader
    _sender: Sender

    @abstractmethod
    def _run(self, call: Call[T]) -> T:
        """Sends a call until it is answered."""

    def tail_pages(
        self,
        queue: str,
        *,
        wait: float = 20.0,
        patience: float | None = None,
        notice: Notice | None = None,
        **options: Unpack[ReadOptions],
    ) -> Iterator[Page]:
        """Follows a queue and never ends; yields an empty page whenever ``wait`` has passed without messages.

        Servers may come and go meanwhile. The cursor of the last page, given as ``since`` to a later call, goes on
        where this one stopped.

        Args:
            queue: The queue.
            wait: Seconds, up to 20, that the server holds a request open.
            patience: Seconds of uninterrupted failure after which to give up; None: never.
            notice: Called with the error when the service begins to fail, and with None when it answers again.
            options: See :class:`Query`. Without ``since`` only what becomes readable from now on; ``since=0`` begins
                with the oldest.

        Raises:
            ClientError: One that will not pass, such as :class:`QueueNotFound`; or patience has run out.
        """
        timing = self._timing
        patient = Patience(self._policy, patience, timing.clock, timing.draw, notice)
        following = Tailing(start_query(queue, options), wait, patient, timing.clock)
        while True:
            try:
                page = self._run(following.call())
            except ClientError as error:
                pause = following.pause_after(error)
                if pause is None:
                    raise
                timing.sleep(pause)
                continue
            taken = following.took(page)
            if taken is None:
                continue
            page, pause = taken
            yield page
            if pause:
                timing.sleep(pause)

    def tail(
        self,
        queue: str,
        *,
        wait: float = 20.0,
        patience: float | None = None,
        notice: Notice | None = None,
        **options: Unpack[ReadOptions],
    ) -> Iterator[Message]:
        """Follows a queue, message by message; see :meth:`tail_pages`."""
        for page in self.tail_pages(queue, wait=wait, patience=patience, notice=notice, **options):
            yield from page.messages

    def stream(
        self,
        queues: str | Iterable[str] | None = None,
        *,
        since: Point | None = None,
        partitions: str | int | Iterable[int] = "*",
        limit: int | None = None,
        cursor: str | None = None,
        early: bool = False,
        patience: float | None = None,
        notice: Notice | None = None,
    ) -> Iterator[StreamedMessage]:
        """Follows one queue, several, or (None) all that the credential may read; never ends.

        One connection serves up to 1,000 queues. It goes on after failures, restarts of the service and new tokens:
        nothing is left out, and nothing comes twice.

        Args:
            queues: Which.
            since: Where to begin; None: with the oldest messages; ``now``: with what comes.
            partitions: Of the queues.
            limit: Messages of a partition that the server reads together.
            cursor: That of the last message of an earlier stream of the same queues.
            early: Give messages as soon as they are stored, before the read delay is over: those are marked
                ``early``, may vanish yet, and are not in order with the others. Each is given once.
            patience: Seconds of uninterrupted failure after which to give up; None: never.
            notice: Called with the error when the service begins to fail, and with None when it answers again.

        Raises:
            ClientError: One that will not pass, such as :class:`QueueNotFound`; or patience has run out.

        Example:
            >>> for streamed in client.stream(["orders"], since=0):
            ...     print(streamed.queue, streamed.message.body)
            ...     break
            orders one apple
        """
        timing = self._timing
        patient = Patience(self._policy, patience, timing.clock, timing.draw, notice)
        state = Streaming(queues, since, partitions, limit, cursor, patient, early=early)
        while True:
            call = state.call()
            attempts = Attempts(call, self._choice, self._policy, self._timeout, clock=timing.clock, draw=timing.draw)
            header = self._authorization.header()
            try:
                with self._sender.open(call, attempts, header) as parts:
                    for part in parts:
                        yield from state.take(part)
                        if state.renews and self._authorization.renew(header):
                            break
                pause = timing.draw() * self._policy.base
            except ClientError as error:
                if state.asks_for_token(error) and self._authorization.renew(header):
                    continue
                attempts.pause_after(error)
                found = state.pause_after(error)
                if found is None:
                    raise
                pause = found
            timing.sleep(pause)


class AsyncFollowing:
    """Live reads of :class:`~queuey.client.AsyncClient`."""

    _timing: AsyncTiming
    _policy: RetryPolicy
    _choice: ServerChoice
    _timeout: float
    _authorization: AsyncAuthorizationHeader
    _sender: AsyncSender

    @abstractmethod
    async def _run(self, call: Call[T]) -> T:
        """Sends a call until it is answered."""

    async def tail_pages(
        self,
        queue: str,
        *,
        wait: float = 20.0,
        patience: float | None = None,
        notice: Notice | None = None,
        **options: Unpack[ReadOptions],
    ) -> AsyncIterator[Page]:
        """Follows a queue live and never ends; see :meth:`Client.tail_pages`."""
        timing = self._timing
        patient = Patience(self._policy, patience, timing.clock, timing.draw, notice)
        following = Tailing(start_query(queue, options), wait, patient, timing.clock)
        while True:
            try:
                page = await self._run(following.call())
            except ClientError as error:
                pause = following.pause_after(error)
                if pause is None:
                    raise
                await timing.sleep(pause)
                continue
            taken = following.took(page)
            if taken is None:
                continue
            page, pause = taken
            yield page
            if pause:
                await timing.sleep(pause)

    async def tail(
        self,
        queue: str,
        *,
        wait: float = 20.0,
        patience: float | None = None,
        notice: Notice | None = None,
        **options: Unpack[ReadOptions],
    ) -> AsyncIterator[Message]:
        """Follows a queue live, message by message; see :meth:`Client.tail_pages`."""
        async for page in self.tail_pages(queue, wait=wait, patience=patience, notice=notice, **options):
            for message in page.messages:
                yield message

    async def stream(
        self,
        queues: str | Iterable[str] | None = None,
        *,
        since: Point | None = None,
        partitions: str | int | Iterable[int] = "*",
        limit: int | None = None,
        cursor: str | None = None,
        early: bool = False,
        patience: float | None = None,
        notice: Notice | None = None,
    ) -> AsyncIterator[StreamedMessage]:
        """Follows queues by a stream and never ends; see :meth:`Client.stream`."""
        timing = self._timing
        patient = Patience(self._policy, patience, timing.clock, timing.draw, notice)
        state = Streaming(queues, since, partitions, limit, cursor, patient, early=early)
        while True:
            call = state.call()
            attempts = Attempts(call, self._choice, self._policy, self._timeout, clock=timing.clock, draw=timing.draw)
            header = await self._authorization.header()
            try:
                async with self._sender.open(call, attempts, header) as parts:
                    async for part in parts:
                        for streamed in state.take(part):
                            yield streamed
                        if state.renews and await self._authorization.renew(header):
                            break
                pause = timing.draw() * self._policy.base
            except ClientError as error:
                if state.asks_for_token(error) and await self._authorization.renew(header):
                    continue
                attempts.pause_after(error)
                found = state.pause_after(error)
                if found is None:
                    raise
                pause = found
            await timing.sleep(pause)
