"""The blocking consumer: runs the async consumer in an event loop on a separate thread."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from types import TracebackType
from typing import Any, Self, TypeVar

from qdo.consumer.buffer import Batch
from qdo.consumer.consumer import AsyncConsumer
from qdo.errors import InvalidArgument, NotOwner
from qdo.group.callbacks import log_callback_errors
from qdo.group.protocol import Coordinator
from qdo.loops import LoopThread, cancel
from qdo.partitions import Partition
from qdo.settings import ConsumerSettings
from queuey.client import AsyncClient, Message

T = TypeVar("T")

PlainCallback = Callable[[frozenset[Partition]], None]


class Consumer:
    """Blocking :class:`AsyncConsumer` with the same arguments, names and errors. Use it as ``with consumer:``.

    ::

        from qdo import Consumer
        from queuey.client import AsyncClient

        consumer = Consumer(AsyncClient(), group="readers", queues=["orders"])
        with consumer:
            while not (batches := consumer.poll(timeout=1.0)):
                pass
            for batch in batches:
                for message in batch.messages:
                    print(batch.partition.number, message.body)
            consumer.commit()

    The consumer owns the client and the coordinator: it uses them in its own thread and closes them. Do not use them
    elsewhere. Callbacks are plain functions. Each runs in its own thread and may call :meth:`commit` and the other
    methods. A thread cannot be cancelled: the next callback waits for it, as in :class:`AsyncConsumer`.

    Call :meth:`poll` from one thread only; the other methods are thread-safe. If poll is interrupted, for example by
    Ctrl-C, the next poll returns the messages that it was about to return. After a fork only the parent may use the
    consumer.
    """

    def __init__(  # noqa: PLR0913 - all but two are options
        self,
        client: AsyncClient,
        coordinator: Coordinator | None = None,
        *,
        group: str | None = None,
        queues: Iterable[str] = (),
        patterns: Iterable[str] = (),
        member: str | None = None,
        settings: ConsumerSettings | None = None,
        on_assign: PlainCallback | None = None,
        on_revoke: PlainCallback | None = None,
        on_lost: PlainCallback | None = None,
    ) -> None:
        self._inner = AsyncConsumer(
            client,
            coordinator,
            group=group,
            queues=queues,
            patterns=patterns,
            member=member,
            settings=settings,
            on_assign=_run_in_thread(on_assign),
            on_revoke=_run_in_thread(on_revoke),
            on_lost=_run_in_thread(on_lost),
        )
        self.settings = self._inner.settings
        self.member = self._inner.member
        self._coordinator = coordinator
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._thread: LoopThread | None = None
        self._over = False
        self._polling: asyncio.Task[Any] | None = None
        self._unreceived = False
        """Whether the last poll has handed out messages that have not reached its caller yet."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def service(self) -> str:
        """The id of the service's store, which is part of every partition's identity; empty before the start."""
        return self._inner.service

    @property
    def closing(self) -> bool:
        """Whether the consumer has begun to close; poll returns nothing from then on."""
        return self._over or self._inner.closing

    def start(self) -> None:
        """Finds the queues and joins the group; closes the consumer after an error. See :meth:`AsyncConsumer.start`."""
        self._check_process()
        with self._lock:
            if self._thread is not None or self._over:
                raise InvalidArgument("a consumer can be started only once")
            self._thread = LoopThread("consumer")
        try:
            self._thread.call(self._inner.start())
        except BaseException:
            self.close()
            raise

    def close(self, within: float | None = None) -> None:
        """Releases all partitions, leaves the group and closes client and coordinator. Idempotent.

        Does nothing in a forked child. See :meth:`AsyncConsumer.close`.

        Args:
            within: Seconds that on_revoke may take, or None for the setting ``revoke_timeout``.
        """
        if os.getpid() != self._process:
            return
        with self._lock:
            thread, over, self._over = self._thread, self._over, True
        if thread is None or over:
            return
        try:
            thread.call(self._close(within))
        finally:
            thread.stop()

    def poll(self, most: int = 500, timeout: float | None = 1.0, *, skip: Collection[Partition] = ()) -> list[Batch]:
        """Returns messages that have arrived; see :meth:`AsyncConsumer.poll`."""
        if self._over:
            return []
        thread = self._require_thread()

        async def poll() -> list[Batch]:
            if self._polling is not None and not self._polling.done():
                await cancel(self._polling)  # the caller was interrupted
            self._take_back()
            self._polling = asyncio.current_task()
            batches = await self._inner.poll(most, timeout, skip=skip)
            self._unreceived = bool(batches)
            if interrupted.is_set():
                self._take_back()
            return batches

        interrupted = threading.Event()
        try:
            batches = thread.call(poll())
        except BaseException:
            # Put the messages back before any later call, such as a commit.
            interrupted.set()
            thread.call_soon(self._take_back)
            raise
        self._unreceived = False
        return batches

    def _take_back(self) -> None:
        """Puts the messages of an interrupted poll back into the buffer. Runs in the loop."""
        if self._unreceived:
            self._unreceived = False
            self._inner.recall()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Message:
        """Returns the next message; ends when the consumer is closed. See :meth:`AsyncConsumer.__anext__`."""
        while not self.closing:
            for batch in self.poll(1, None):
                return batch.messages[0]
        raise StopIteration

    def commit(self, offsets: Mapping[Partition, str] | None = None, *, back: bool = False) -> None:
        """Records how far partitions were processed; see :meth:`AsyncConsumer.commit`."""
        self._require_thread().call(self._inner.commit(offsets, back=back))

    def assign(self, partitions: Mapping[str, Iterable[int]]) -> frozenset[Partition]:
        """Reads only these partitions from now on; see :meth:`AsyncConsumer.assign`.

        Example:
            >>> from qdo import Consumer
            >>> from queuey.client import AsyncClient
            >>> with Consumer(AsyncClient()) as consumer:
            ...     (first,) = consumer.assign({"orders": [1]})
            ...     consumer.seek(first, "earliest")
            ...     batches = consumer.poll()
        """
        return self._require_thread().call(self._inner.assign(partitions))

    def seek(self, partition: Partition, to: str | datetime | float) -> None:
        """Changes the position in a partition; see :meth:`AsyncConsumer.seek`."""
        self._require_thread().call(self._inner.seek(partition, to))

    def pause(self, partitions: Iterable[Partition]) -> None:
        """Returns no messages of these partitions until they are resumed; see :meth:`AsyncConsumer.pause`."""
        self._require_thread().run(lambda: self._inner.pause(partitions))

    def resume(self, partitions: Iterable[Partition]) -> None:
        """Returns messages of paused partitions again."""
        self._require_thread().run(lambda: self._inner.resume(partitions))

    @property
    def paused(self) -> frozenset[Partition]:
        """The paused partitions."""
        return self._require_thread().run(lambda: self._inner.paused)

    @property
    def assignment(self) -> frozenset[Partition]:
        """The partitions that this member owns, without those that are being revoked."""
        return self._require_thread().run(lambda: self._inner.assignment)

    def position(self, partition: Partition) -> str | None:
        """Returns the position in a partition; see :meth:`AsyncConsumer.position`."""
        return self._require_thread().run(lambda: self._inner.position(partition))

    def committed(self, partition: Partition) -> str | None:
        """Returns the committed offset; see :meth:`AsyncConsumer.committed`."""
        return self._require_thread().run(lambda: self._inner.committed(partition))

    def lag(self) -> dict[Partition, int]:
        """Returns the number of messages after each committed offset; see :meth:`AsyncConsumer.lag`."""
        return self._require_thread().call(self._inner.lag())

    def wake(self) -> None:
        """Makes the current poll return, or the next one that would wait."""
        thread = self._thread
        if thread is not None and os.getpid() == self._process:
            thread.call_soon(self._inner.wake)

    async def _close(self, within: float | None) -> None:
        try:
            await self._inner.close(within)
        finally:
            if self._coordinator is not None:
                await self._coordinator.close()
            await self._inner.client.close()

    def _require_thread(self) -> LoopThread:
        self._check_process()
        thread = self._thread
        if thread is None:
            raise InvalidArgument("the consumer was not started: use 'with consumer:'")
        if not thread.alive:
            raise NotOwner("the consumer is closed")
        return thread

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise InvalidArgument("the consumer belongs to the parent process: create another one after a fork")


def _run_in_thread(callback: PlainCallback | None) -> Callable[[frozenset[Partition]], Awaitable[None]] | None:
    """Returns an async callback that runs a plain one in its own thread and waits for it, even if cancelled."""
    if callback is None:
        return None

    async def call(partitions: frozenset[Partition]) -> None:
        loop = asyncio.get_running_loop()
        finished: asyncio.Future[None] = loop.create_future()

        def settle() -> None:
            if not finished.done():
                finished.set_result(None)

        def run() -> None:
            try:
                with log_callback_errors(callback, partitions):
                    callback(partitions)
            finally:
                with suppress(RuntimeError):  # the loop is closed
                    loop.call_soon_threadsafe(settle)

        threading.Thread(target=run, name="qdo-callback", daemon=True).start()
        try:
            await asyncio.shield(finished)
        except asyncio.CancelledError:
            await finished  # the thread cannot be cancelled; only the end of the loop ends this wait
            raise

    return call
