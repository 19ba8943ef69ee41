"""The async consumer."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from types import TracebackType
from typing import Self

from qdo.consumer.buffer import Batch, BufferedSlice, FetchBuffer
from qdo.consumer.fetcher import Fetcher
from qdo.consumer.offset_mirror import OffsetMirror
from qdo.consumer.partition_reader import PartitionReader
from qdo.consumer.positions import LatestStart, find_position
from qdo.errors import InvalidArgument, NotOwner, QdoError
from qdo.group.callbacks import Callback, CallbackListener, PartitionListener
from qdo.group.discovery import QueueFinder
from qdo.group.member import GroupMembership, ManualAssignment
from qdo.group.offset_moves import warn_of_other_stores
from qdo.group.offsets import PartitionOwnership
from qdo.group.opening import make_coordinator
from qdo.group.partition_table import Ownership
from qdo.group.protocol import Coordinator
from qdo.group.refusals import Refusals
from qdo.group.session_events import SessionOptions
from qdo.loops import cancel
from qdo.partitions import Partition, Queue, Subscription, subscribe
from qdo.settings import ConsumerSettings
from queuey.client import AsyncClient, Message, order_of

log = logging.getLogger("qdo.consumer")

YIELDS_BEFORE_HAND_OUT = 2
"""Number of loop iterations until a new read request is sent: the client sends head and body separately. So the service
prepares the next page while the caller handles this one, even if the caller never awaits.
"""
MIRROR_TIMEOUT = 5.0
"""Timeout for mirroring the last offsets at the close, in seconds."""


class AsyncConsumer:
    """A member of a group. It owns a share of the queues' partitions and returns their messages in order.

    ::

        import asyncio

        from qdo import AsyncConsumer
        from queuey.client import AsyncClient

        async def main():
            async with AsyncClient() as client, AsyncConsumer(client, group="async", queues=["orders"]) as consumer:
                while not (batches := await consumer.poll()):
                    pass
                await consumer.commit()
            return sum(len(batch.messages) for batch in batches)

        assert asyncio.run(main()) > 0

    Every message is returned at least once to a member of the group, in order within each partition. Use the consumer
    in one event loop, as ``async with consumer:``. It closes neither the client nor the coordinator. Without queues and
    patterns it does not join a group and reads the partitions given to :meth:`assign`.

    Args:
        client: A client of the application that owns the queues.
        coordinator: The coordinator of a group in ZooKeeper.
        group: The name of a group of the service, which assigns the partitions to the members. Without ``group`` and
            ``coordinator`` nothing can be committed.
        queues: Names of queues, which need not exist yet.
        patterns: Shell-style patterns for queue names. A pattern matches dead-letter queues (``*.dead``) only if the
            pattern ends with ``.dead`` itself.
        member: A name that this member keeps across restarts, unique in the group. By default a name is generated.
        settings: See :class:`ConsumerSettings`.
        on_assign: Called with the partitions that this member owns from now on, before poll returns their messages.
        on_revoke: Called with the partitions that will be released; poll returns no more of their messages. Commits for
            them are possible until it returns.
        on_lost: Called with the partitions that another member owns now; commits for them are refused.

    Callbacks of one consumer never overlap: each waits until the one before has ended. Partitions that have to wait for
    ``on_revoke`` share one call. ``on_revoke`` is cancelled after ``revoke_timeout``, and ``on_lost`` follows once it
    has ended. Other members still get the partition on time. New partitions are not read before ``on_assign`` has
    ended, so a callback that never ends keeps this consumer from reading them; it is logged after a minute. Closing
    waits for such a callback no longer than ``revoke_timeout`` (at least one second) each time.

    Attributes:
        closing: Whether the consumer has begun to close; poll returns nothing from then on.

    Raises:
        InvalidArgument: A name is not valid, or a setting needs a group and none is given.
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
        on_assign: Callback | None = None,
        on_revoke: Callback | None = None,
        on_lost: Callback | None = None,
    ) -> None:
        self.settings = settings or ConsumerSettings()
        coordinator = make_coordinator(client, coordinator, group, self.settings.revoke_timeout, self.settings.grace)
        if coordinator is None and (self.settings.mirror or self.settings.commit_every is not None):
            raise InvalidArgument("mirror and commit_every need a group: give the consumer group=")
        wants = subscribe(queues, patterns, application=client.application)
        self.client = client
        self._coordinator = coordinator
        self.member = member or f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
        self.closing = False
        self._signal = asyncio.Event()
        self._woken = False
        self._failure: Exception | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._end: asyncio.Task[None] | None = None
        listeners: list[PartitionListener] = [CallbackListener(on_assign, on_revoke, on_lost)]
        if self.settings.commit_every is not None:
            listeners.append(CallbackListener(on_revoke=self._flush_pending_offsets))
        self._mirror = None
        if coordinator is not None and self.settings.mirror and not coordinator.in_service:
            self._mirror = OffsetMirror(client, coordinator.group)
        self._buffer = FetchBuffer()
        self._refusals = Refusals(wants)
        self._finder = QueueFinder(
            client,
            wants,
            interval=self.settings.discover,
            prepare=lambda service: warn_of_other_stores(self.coordinator, service),
            changed=self._recheck,
            failed=self._fail,
            refusals=self._refusals,
        )
        self._fetcher = Fetcher(
            client,
            self._buffer,
            self.settings,
            arrived=self._signal.set,
            missing=self._finder.request_look_up,
            failed=self._fail,
            refusals=self._refusals,
        )
        self._latest_start = LatestStart(
            client,
            lambda ends: self._group.table.record(ends),  # noqa: PLW0108 - the group is created below
            lambda row, position: self._reader.begin_at(row, position),  # noqa: PLW0108 - so is the reader
            is_shared=bool(wants),
        )
        self._reader = PartitionReader(
            self._buffer,
            self._fetcher,
            listeners,
            begin=self._latest_start.begin if self.settings.start == "latest" else None,
            changed=self._fetch_and_wake_poll,
            failed=self._fail,
        )
        times = self.settings.settle, self.settings.grace, self.settings.revoke_timeout
        mirrors = () if self._mirror is None else (self._mirror,)
        options = SessionOptions(*times, commit_seconds=self.settings.commit_every or 0.0, commit_listeners=mirrors)
        self._assigned = None if wants else ManualAssignment(coordinator, self._reader, options)
        is_static = member is not None
        self._group = self._assigned or GroupMembership(
            self.coordinator, self.member, self._reader, queues=self._finder, static=is_static, options=options
        )

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def attach(self, driver: PartitionListener, commit_messages: int, commit_seconds: float) -> None:
        """Adds a listener that is notified of partition changes before the user's callbacks.

        For code that drives the consumer, such as a worker. Call it before the start.

        Args:
            driver: The listener, which is also notified of commits.
            commit_messages: Number of messages after which the offsets that it adds to :attr:`ownership` are committed.
            commit_seconds: Seconds after which they are committed even if there are fewer.

        Raises:
            InvalidArgument: The consumer is not a member of a group.
        """
        self._group.gather_commits(commit_messages, commit_seconds, driver)
        self._reader.attach(driver)

    async def start(self, prepare: Callable[[], Awaitable[None]] | None = None) -> None:
        """Joins the group. Partitions are assigned afterwards.

        Waits while the service does not answer, because the identity of partitions includes the id of its store. Any
        error closes the consumer.

        Args:
            prepare: Awaited when the service answers, before the group is joined.

        Raises:
            ClientError: The service refuses to list the queues.
            QdoError: The service does not return the id of its store.
            CoordinationError: The group cannot be reached.
            MemberExists: Another member has this name.
            InvalidArgument: The consumer was started before.
        """
        if self._tasks or self.closing:
            raise InvalidArgument("a consumer can be started only once")
        loop = asyncio.get_running_loop()
        try:
            if self._coordinator is not None:
                await self._coordinator.open()
                if self.settings.start == "latest" and self._assigned is None:
                    self._latest_start.set_group(await self._coordinator.snapshot())
            await self._finder.begin()
            if prepare is not None:
                await prepare()
            self._tasks.append(loop.create_task(self._finder.run()))
            await self._group.start()
        except BaseException:
            await self.close()
            raise

    async def close(self, within: float | None = None) -> None:
        """Calls on_revoke, releases all partitions and leaves the group. Polls return nothing from now on. Idempotent.

        Each partition is released as soon as the on_revoke with it has returned; then another member can get it. With
        ``commit_every`` the processed messages are committed, but not those that the last poll returned.

        Args:
            within: Seconds that on_revoke may take, or None for the setting ``revoke_timeout``.
        """
        self.closing = True
        self._signal.set()
        if self._end is None:
            self._end = asyncio.get_running_loop().create_task(self._close(within))
        # Leave the group even if the caller is cancelled.
        await asyncio.shield(self._end)

    async def poll(
        self,
        most: int = 500,
        timeout: float | None = 1.0,  # noqa: ASYNC109 - the timeout does not cancel anything
        *,
        skip: Collection[Partition] = (),
    ) -> list[Batch]:
        """Returns messages that have arrived, from all partitions in turn. Waits if no message has arrived.

        With ``commit_every``, messages of earlier polls count as processed now, unless their partition is in ``skip``.

        Args:
            most: Max messages over all batches.
            timeout: Seconds to wait; None waits until a message arrives, and 0 does not wait.
            skip: Partitions to leave out now, because their messages are still being processed.

        Returns:
            At most one batch for each partition. The list is empty if the timeout has expired, :meth:`wake` was called,
            or the consumer is ``closing``.

        Raises:
            ClientError: The service refuses reads for a reason that needs a correction. Reading continues, so poll
                again after the correction.
            CoordinationRefused: The coordination service does not allow an operation. Poll again after a correction.
        """
        if most < 1:
            raise InvalidArgument("most must be 1 or more")
        deadline = None if timeout is None else asyncio.get_running_loop().time() + timeout
        self._schedule_commits(self._buffer.settle(skip))
        while not self.closing:
            self._signal.clear()  # any signal from here on makes the loop check again
            if self._failure is not None:
                failure, self._failure = self._failure, None
                raise failure
            if slices := [] if self._stopped else self._buffer.take(most, skip):
                if batches := await self._hand_out(slices):
                    return batches
                continue
            if self._woken:
                self._woken = False
                break
            try:
                async with asyncio.timeout_at(deadline):
                    await self._signal.wait()
            except TimeoutError:
                break
        return []

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        """Returns the next message; ends when the consumer is closed.

        :meth:`commit` in the body of the loop commits all messages up to the current one.
        """
        while not self.closing:
            for batch in await self.poll(1, None):
                return batch.messages[0]
        raise StopAsyncIteration

    async def commit(self, offsets: Mapping[Partition, str] | None = None, *, back: bool = False) -> None:
        """Commits offsets.

        Args:
            offsets: The id of the last processed message of each partition, or None for all messages that poll has
                returned so far.
            back: Allows ids before the committed ones: the next owner of the partition begins there again. The position
                of this consumer does not change; see :meth:`seek`.

        Raises:
            InvalidArgument: An id was not returned by this consumer, or is before the committed one (without ``back``
                and without :meth:`seek`); or the consumer has no group. Nothing was committed.
            GroupActive: Partitions were chosen by :meth:`assign`, and a member of the group owns one of them.
            NotOwner: This member no longer owns some of the partitions; the rest were committed.
            CoordinationLost: The offsets may or may not have been committed. Commit again.
            SessionLost: This member no longer owns the partitions.
        """
        if self._coordinator is None:
            raise InvalidArgument("commit needs a group: give the consumer group=")
        if offsets is None:
            offsets = {row.partition: row.position for row in self._find_begun_rows() if row.position is not None}
        await self._group.table.commit(offsets, back=back)

    async def assign(self, partitions: Mapping[str, Iterable[int]]) -> frozenset[Partition]:
        """Reads only these partitions from now on; for a consumer that was created without queues and patterns.

        Other consumers may read the same partitions, including members of the group. Partitions that were assigned
        before keep their positions. New ones begin at the committed offset of the given group, or without one as the
        setting ``start`` says. Commits change the offsets of that group, and the last one wins; without a group they
        are refused. The callbacks are called for added and removed partitions.

        Args:
            partitions: The numbers of the partitions of each queue.

        Returns:
            The partitions, for use in other calls.

        Raises:
            InvalidArgument: A partition does not exist; or the consumer was created with queues or patterns, was not
                started, or is closed.
            ClientError: A queue does not exist, or the service does not answer.
            CoordinationError: The offsets cannot be read.

        Example:
            >>> import asyncio
            >>> from qdo import AsyncConsumer
            >>> from queuey.client import AsyncClient
            >>> async def main():
            ...     async with AsyncClient() as client, AsyncConsumer(client) as consumer:
            ...         (first,) = await consumer.assign({"orders": [1]})
            ...         await consumer.seek(first, "earliest")
            ...         (batch,) = await consumer.poll()
            ...         return [message.body for message in batch.messages]
            >>> asyncio.run(main())
            ['one apple', 'two eggs']
        """
        if self._assigned is None or not self._finder.own_subscription.service or self.closing:
            raise InvalidArgument("assign needs a started consumer that was created without queues and patterns")
        assigned = set()
        for name, numbers in partitions.items():
            queue = Queue(self._finder.own_subscription.service, self.client.application, name)
            count = (await self.client.info(name)).partitions
            for number in numbers:
                if not 1 <= number <= count:
                    raise InvalidArgument(f"queue {name!r} has the partitions 1 to {count}, not {number}")
                assigned.add(Partition(queue, number))
        await self._assigned.assign(assigned)
        return frozenset(assigned)

    @property
    def ownership(self) -> Ownership:
        """The partitions that this member owns in its present session, for code that drives the consumer."""
        return self._group.table

    def rejoin(self) -> None:
        """Releases all partitions, each once its work is finished, leaves the group and joins it again."""
        self._group.rejoin()

    @property
    def connected(self) -> bool:
        """Whether the partitions are certainly still owned, by the session's own clock, even before an event."""
        return self._group.table.connected

    async def seek(self, partition: Partition, to: str | datetime | float) -> None:
        """Changes the position in a partition. Prefetched messages are dropped, and the next commit may go back.

        With ``commit_every``, the new position is committed.

        Args:
            partition: The partition.
            to: ``earliest``, ``latest``, the id of the message after which reading continues, or an instant (seconds
                since 1970, or an aware datetime) from which to read.

        Raises:
            InvalidArgument: The position is not valid.
            NotOwner: This member does not own the partition.
            ClientError: The service cannot return the partition's end.
        """
        self._require_owned(partition)
        position = await find_position(self.client, partition, to)
        row = self._require_owned(partition)
        self._fetcher.leave_call(row)
        self._buffer.clear(row)
        row.seek(position)
        self._schedule_commits([row])
        self._reader.read_from_new_position(row)

    @property
    def coordinator(self) -> Coordinator:
        """The coordinator of the group.

        Raises:
            InvalidArgument: The consumer has no group.
        """
        if self._coordinator is None:
            raise InvalidArgument("this consumer has no group: give it group=")
        return self._coordinator

    @property
    def refused(self) -> float:
        """Seconds for which the service has refused reads or the list of queues to the client's credential."""
        return self._refusals.seconds

    @property
    def unseen(self) -> frozenset[str]:
        """Queues that may exist, but that no subscribed member may see; only the group's leader knows them."""
        return frozenset(queue.name for queue in self._finder.unseen)

    @property
    def wanted(self) -> Subscription:
        """The subscription: names and patterns of queues."""
        return self._finder.own_subscription

    @property
    def service(self) -> str:
        """The id of the service's store, which is part of every partition's identity; empty before the start."""
        return self._finder.own_subscription.service

    def pause(self, partitions: Iterable[Partition]) -> None:
        """Returns no messages of these partitions until they are resumed. Partitions that are not owned are skipped."""
        self._set_paused(partitions, paused=True)

    def resume(self, partitions: Iterable[Partition]) -> None:
        """Returns messages of paused partitions again."""
        self._set_paused(partitions, paused=False)

    @property
    def paused(self) -> frozenset[Partition]:
        """The paused partitions. A partition that is released and comes back is no longer paused."""
        return frozenset(row.partition for row in self._find_owned() if row.paused)

    @property
    def assignment(self) -> frozenset[Partition]:
        """The partitions that this member owns, without those that are being revoked."""
        return frozenset(row.partition for row in self._find_owned())

    def position(self, partition: Partition) -> str | None:
        """Returns the id of the last returned message, or the id after which reading begins; None means the beginning.

        Raises:
            NotOwner: This member does not own the partition.
        """
        return self._require_row(partition).position

    def committed(self, partition: Partition) -> str | None:
        """Returns the committed offset, or None if nothing was committed.

        Raises:
            NotOwner: This member does not own the partition.
        """
        return self._require_row(partition).recorded

    async def lag(self) -> dict[Partition, int]:
        """Returns the number of messages after the committed offset of each partition, as counted by the service.

        Without a group, counts from the last message that poll returned.

        Raises:
            ClientError: The service cannot count them.
        """
        queues: dict[str, dict[int, str | None]] = {}
        without_group = self._coordinator is None
        owned = {row.partition: row.position if without_group else row.recorded for row in self._find_owned()}
        for partition, committed in owned.items():
            queues.setdefault(partition.queue.name, {})[partition.number] = committed
        lags = {name: await self.client.lag(name, cursors) for name, cursors in queues.items()}
        return {p: lags[p.queue.name][p.number].lag for p in owned}

    def wake(self) -> None:
        """Makes the current poll return, or the next one that would wait."""
        self._woken = True
        self._signal.set()

    @property
    def _stopped(self) -> bool:
        return self._reader.is_stopped or not self._group.table.connected

    async def _hand_out(self, taken: list[BufferedSlice]) -> list[Batch]:
        self._fetcher.kick()
        try:
            for _ in range(YIELDS_BEFORE_HAND_OUT):
                await asyncio.sleep(0)
        except BaseException:
            self._buffer.hand_out(taken, stopped=True)
            raise
        return self._buffer.hand_out(taken, stopped=self._stopped or self.closing)

    def recall(self) -> None:
        """Puts the messages of the last poll back into the buffer, because they did not reach the caller."""
        self._buffer.recall()

    async def _close(self, within: float | None) -> None:
        await cancel(*self._tasks)
        await self._fetcher.close()
        await self._reader.close()
        await self._group.stop(within)
        if self._mirror is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(MIRROR_TIMEOUT):
                    await self._mirror.flush()

    def _schedule_commits(self, rows: Iterable[PartitionOwnership]) -> None:
        for row in rows if self.settings.commit_every is not None else ():
            if row.position is not None and not row.would_go_back(order_of(row.position)):
                self._group.table.schedule_commit(row, row.position, 0)

    async def _flush_pending_offsets(self, leaving: frozenset[Partition]) -> None:
        rows = [row for row in self._find_begun_rows() if row.partition in leaving and row.pending_offset is not None]
        try:
            await self._group.table.flush(rows)
        except QdoError as error:
            log.warning("some offsets could not be committed: %s", error)

    def _set_paused(self, partitions: Iterable[Partition], *, paused: bool) -> None:
        for partition in partitions:
            row = self._find_begun_row(partition)
            if row is not None:
                row.paused = paused
                self._buffer.refresh(row)
        self._fetch_and_wake_poll()

    def _find_begun_rows(self) -> list[PartitionOwnership]:
        return [row for row in self._group.table.held.values() if row.begun]

    def _find_owned(self) -> list[PartitionOwnership]:
        return [row for row in self._find_begun_rows() if not row.closed]

    def _find_begun_row(self, partition: Partition) -> PartitionOwnership | None:
        row = self._group.table.held_row(partition)
        return row if row is not None and row.begun else None

    def _require_row(self, partition: Partition) -> PartitionOwnership:
        row = self._find_begun_row(partition)
        if row is None:
            raise NotOwner(f"{partition} is not owned by this member", frozenset([partition]))
        return row

    def _require_owned(self, partition: Partition) -> PartitionOwnership:
        row = self._require_row(partition)
        if row.closed:
            raise NotOwner(f"{partition} is being released", frozenset([partition]))
        return row

    def _fetch_and_wake_poll(self) -> None:
        self._fetcher.kick()
        self._signal.set()

    def _recheck(self) -> None:
        self._group.recheck()

    def _fail(self, error: Exception) -> None:
        self._failure = error
        self._signal.set()
