"""Groups of processes of one machine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future
from typing import TypeVar

import msgspec

from qdo.coordination import CommittedOffset, Coordinator, Listen, Member, Session, TargetAssignment
from qdo.coordination.encoding import valid_name
from qdo.coordination.local import transactions
from qdo.coordination.local.database import FileTransaction
from qdo.coordination.local.options import LocalOptions
from qdo.coordination.local.session_thread import LocalSession, SessionThread
from qdo.errors import CoordinationError, CoordinationLost
from qdo.partitions import Partition, Queue

T = TypeVar("T")


class LocalCoordinator(Coordinator):
    """A group in a file that all its processes use.

    Args:
        group: Its name.
        options: The settings.
    """

    def __init__(self, group: str, options: LocalOptions) -> None:
        self.group = valid_name("group", group)
        self.session_timeout = options.session_timeout
        self._options = options
        self._thread: SessionThread | None = None
        self._opening = asyncio.Lock()

    async def open(self) -> None:
        """See the contract. Makes the file if there is none."""
        async with self._opening:
            if self._thread is not None:
                return
            thread = SessionThread(self._options, self.group)
            thread.start()
            try:
                await asyncio.wrap_future(thread.submit(thread.begin))
            except BaseException:
                thread.shut()
                raise
            self._thread = thread

    async def join(self, member: Member, listen: Listen, *, replace: bool = False) -> Session:
        """See the contract."""
        thread, loop = self._opened(), asyncio.get_running_loop()
        valid_name("member", member.id)
        joining = msgspec.structs.replace(member, since=time.time())
        outlast = self.outlast
        future = thread.submit(lambda: thread.join_group(joining, loop, listen, replace=replace, outlast=outlast))
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            if not future.cancel():
                _abandon(thread, future)
            raise

    async def members(self) -> dict[str, Member]:
        """See the contract."""
        return await self._read(transactions.members)

    async def target(self) -> TargetAssignment | None:
        """See the contract."""
        return (await self._read(transactions.target)).target

    async def owners(self) -> dict[Partition, str]:
        """See the contract."""
        return await self._read(transactions.owners)

    async def offsets(self, partitions: Iterable[Partition] | None = None) -> dict[Partition, CommittedOffset]:
        """See the contract."""
        asked = None if partitions is None else list(partitions)
        return await self._read(lambda tx, where: transactions.offsets(tx, where, asked))

    async def set_offsets(
        self,
        offsets: Mapping[Partition, str | None],
        *,
        expected: Mapping[Partition, str | None] | None = None,
    ) -> None:
        """See the contract; here all are moved or none."""

        def work(tx: FileTransaction) -> None:
            where = transactions.ensure(tx, self.group)
            transactions.reap(tx, where)
            transactions.set_offsets(tx, where, offsets, expected or {})

        await self._opened().ask(work)

    async def groups(self) -> list[str]:
        """See the contract."""
        return await self._opened().ask(transactions.names, write=False)

    async def services(self) -> set[str]:
        """See the contract."""
        return await self._read(transactions.services)

    async def forget(self, queues: Collection[Queue] | None = None) -> None:
        """See the contract."""

        def work(tx: FileTransaction) -> None:
            where = transactions.find(tx, self.group)
            if where is not None:
                transactions.reap(tx, where)
                transactions.forget(tx, where, queues)

        await self._opened().ask(work)

    async def close(self) -> None:
        """See the contract."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.shut()
            await asyncio.shield(asyncio.wrap_future(thread.ended))
            thread.join()  # it has nothing left to do but to end

    def _opened(self) -> SessionThread:
        if self._thread is None:
            raise CoordinationLost("coordination is not open")
        return self._thread

    async def _read(self, work: Callable[[FileTransaction, int | None], T]) -> T:
        """Reads something of the group in one snapshot."""
        return await self._opened().ask(lambda tx: work(tx, transactions.find(tx, self.group)), write=False)


def _abandon(thread: SessionThread, joined: Future[LocalSession]) -> None:
    """Ends a session that no caller waits for any more."""

    def leave() -> None:
        if joined.exception() is None:
            thread.leave(joined.result())

    try:
        thread.submit(leave)
    except CoordinationError:
        return  # with the coordinator its sessions have ended
