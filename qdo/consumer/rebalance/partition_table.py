"""The partitions of one session: one row for each, which holds everything that is known of it.

::

    none ──taken──► owned ──taken away, left──► revoking ──done, out of time──► releasing ──released, told──► none
     │                │ ▲                          │                              ▲  ▲
     │ end of the     │ │                          └──found to be another's────────┤  │
     │ taking         └─┼──found to be another's, or at another version────────────┘  │
     ▼ unknown          │                                                             │
    unsure ──taken again, or none                                                     │
       └───────────────────────────given to another member────────────────────────────┘

    every state ──the session is lost──► lost (final)

owned       its owner (the consumer) is notified and works on it. Commits are recorded.
revoking    its owner is asked to stop. Commits are recorded still.
releasing   no commit is accepted any more; one that was asked for before goes first. It is released, however often that
            has to be tried. An owner that was not done is notified that the partition is lost.
unsure      may be owned or not; its owner does not know of it. Taken again if it is given to us still, else released.
lost        the session is over: nothing is recorded, and ``lost`` is called for every partition that the owner has.

A row is one ownership, and calls under way belong to it, not to the partition's name. A row is removed when its
partition is released *and* its owner was notified of the end; only then can the partition be taken again. So an owner
is notified of one partition in order. Calls under way, also cancelled ones, are waited for before ``lost`` is called,
and that is waited for before the partition is taken again: each for ``revoke_timeout`` and no longer. The owner ignores
what it is told late of a former row.

**Commits.** A row has one offset that is to be recorded: the one that was asked for last, whichever is larger. An
older one is not sent again once a newer one was asked for. All of them wait in one buffer, that of :class:`Ownership`.
When the end of a commit is not known, the partition is taken again first, which tells its version.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping
from typing import Any

from qdo.consumer.owned_partition import OwnedPartition, PendingCommit, State
from qdo.consumer.partition_listener import PartitionListener
from qdo.consumer.rebalance.session_events import DEFAULT_OPTIONS, SessionEvents, SessionOptions
from qdo.coordination import AnySession, HandlingNote, OwnedOffset
from qdo.errors import CoordinationError, CoordinationLost, CoordinationRefused, InvalidArgument, NotOwner, SessionLost
from qdo.partitions import Partition, some
from qdo.tasks import CANCEL_GRACE, cancel, start

log = logging.getLogger(__name__)

Request = tuple[OwnedOffset, str | None]
"""A row as it is held, with its note, and the offset to record."""
MAX_NAMED = 5
"""Max partitions that an error names."""


class Ownership:
    """The partitions of a consumer, here none, and the offsets that are to be recorded, of each partition one.

    ::

        pending ──enough messages, or enough time, or a caller waits──► due ──written──► recorded

    Everything that is pending is written together; how, :meth:`_send` decides. While the service does not answer it is
    tried again, for as long as the partition is ours, whether a caller waits or not.
    """

    def __init__(self, owner: PartitionListener, options: SessionOptions = DEFAULT_OPTIONS) -> None:
        self._owner = owner
        self._options = options
        self._pending: dict[Partition, OwnedPartition] = {}
        self._writer: asyncio.Task[None] | None = None
        self._messages = 0
        self._timer: asyncio.TimerHandle | None = None
        self._due = False
        self._closed = False

    @property
    def connected(self) -> bool:
        """They are surely owned still."""
        return False

    @property
    def held(self) -> Mapping[Partition, OwnedPartition]:
        """The rows for which commits are accepted."""
        return {}

    def held_row(self, partition: Partition) -> OwnedPartition | None:
        return self.held.get(partition)

    async def commit(self, offsets: Mapping[Partition, str], *, back: bool = False) -> None:
        """Checks the ids of last processed messages and records them; what is recorded already costs nothing.

        Args:
            offsets: The ids.
            back: They may lie before what was committed.

        Raises:
            InvalidArgument: One of them cannot be committed; none was.
            NotOwner: Some partitions are no longer this member's; the offsets of the rest were recorded.
            CoordinationLost: Each was recorded or not.
            SessionLost
        """
        rows = {each: row for each in offsets if (row := self.held_row(each)) is not None and row.begun}
        lost = frozenset(offsets.keys() - rows.keys())
        changed = [row for each, row in rows.items() if row.accepts(offsets[each], back=back)]
        sought = [row for row in changed if row.seek_pending]
        for row in changed:
            row.want(offsets[row.partition], back=back)
        try:
            lost |= await self.flush(changed) if changed else lost
        except BaseException:
            # Recorded or not: a caller that went back may have to do so again.
            for row in sought:
                row.seek_pending = True
            raise
        if lost:
            raise NotOwner(f"no longer owned by this member: {some(lost, MAX_NAMED)}", lost)

    async def record(self, offsets: Mapping[Partition, str]) -> frozenset[Partition]:
        """Records offsets unchecked; returns the partitions that are not ours, for which nothing was recorded."""
        rows = [row for partition in offsets if (row := self.held_row(partition)) is not None]
        for row in rows:
            row.want(offsets[row.partition])
        return frozenset(offsets) - {row.partition for row in rows} | await self.flush(rows)

    def add(self, row: OwnedPartition, offset: str, messages: int) -> None:
        """Records the id of a last handled message together with others, later; logs it if it cannot be committed.

        Args:
            row: The ownership; nothing happens if it is over.
            offset: The id.
            messages: Number of messages handled since the last call.
        """
        try:
            if not row.commits or not row.accepts(offset):
                return
        except InvalidArgument as error:
            self._not_recorded(error)
            return
        row.want(offset)
        self._pending[row.partition] = row
        self._messages += messages
        if self._messages >= self._options.commit_messages:
            self._write_pending()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._options.commit_seconds, self._write_pending)

    async def flush(self, rows: Collection[OwnedPartition], deadline: float | None = None) -> frozenset[Partition]:
        """Records what is pending of some rows, at once; returns as :meth:`record` does.

        Args:
            rows: The ownerships.
            deadline: Until when it is tried, by the loop's clock; for ``patience`` seconds if it is None.

        Raises:
            CoordinationLost: Each was recorded or not.
            SessionLost
        """
        if self._closed:
            raise SessionLost("the session has ended")
        ours = [row for row in rows if row.commits]
        lost = frozenset(row.partition for row in rows if not row.commits)
        if not ours:
            return lost
        commit = PendingCommit(len(ours), deadline or asyncio.get_running_loop().time() + self._options.patience)
        for row in ours:
            row.waiting_commits.append(commit)
            self._pending[row.partition] = row
        self._write_pending()
        return lost | await asyncio.shield(commit.end)

    async def note(self, row: OwnedPartition, note: HandlingNote | None) -> None:
        """Records beside a partition's offset what was begun of it, in one write with what is pending.

        Raises:
            NotOwner: The ownership is over.
            CoordinationLost, SessionLost
        """
        if row.commits:
            row.note = note
        if await self.flush([row]):
            raise NotOwner(f"{row.partition} is not owned by this member", frozenset([row.partition]))

    def _write_pending(self) -> None:
        """Begins to write everything that is pending."""
        self._messages = 0
        self._stop_timer()
        self._due = bool(self._pending)
        if self._due and self._writer is None and not self._closed:
            self._writer = self._start(self._write_all())

    def _drop(self, row: OwnedPartition) -> None:
        """What is pending of a row is not recorded any more."""
        self._pending.pop(row.partition, None)
        row.answer(recorded=False)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def _write_all(self) -> None:
        failures = 0
        while self._due and self._pending and not self._closed:
            self._due = False
            rows = list(self._pending.values())
            try:
                await self._write(rows)
                failures = 0
            except SessionLost:
                raise
            except Exception as error:  # noqa: BLE001 - the caller of the commit gets it, and the listener
                failures += 1
                self._due = True
                await self._sleep(self._put_off(rows, error, failures))
            self._written()
        self._writer = None

    async def _write(self, rows: list[OwnedPartition]) -> None:
        """Writes what is pending of some rows once."""
        await self._settle_doubts(rows)
        sent = [
            (row, row.pending_offset, row.note, len(row.waiting_commits), row.request())
            for row in rows
            if row.version_known and row.partition in self._pending
        ]
        if not sent:
            return
        try:
            results = await self._send([request for *_, request in sent])
        except BaseException:
            for row, *_ in sent:
                row.version_known = False
            raise
        recorded: dict[Partition, tuple[str, bool]] = {}
        for row, offset, note, waiting, _ in sent:
            self._settle(row, results.get(row.partition))
            if not row.version_known:
                continue
            if offset is not None:
                recorded[row.partition] = offset, row.pending_back
            if row.pending_offset == offset and row.note == note:
                del self._pending[row.partition]
                row.answer(recorded=True)
            else:
                row.answer(waiting, recorded=True)
        if recorded:
            for listener in self._options.commit_listeners:
                listener.recorded(recorded)

    def _put_off(self, rows: list[OwnedPartition], error: Exception, failures: int) -> float:
        """Returns after how long a failed commit is tried again; calls for which that is too late get the error."""
        self._not_recorded(error, failures, waited=all(row.waiting_commits for row in rows))
        pause = self._options.pause(failures)
        now = asyncio.get_running_loop().time()
        for row in rows:
            if isinstance(error, CoordinationLost) and row.commits:
                row.fail(error, due=now + pause)
            elif row.partition in self._pending:
                row.fail(error)
                self._drop(row)
        return pause if self._pending else 0.0

    def _not_recorded(self, error: Exception, failures: int = 1, *, waited: bool = False) -> None:
        quiet = waited or failures > 1
        log.log(logging.DEBUG if quiet else logging.WARNING, "some offsets were not committed: %s", error)
        for listener in self._options.commit_listeners:
            listener.not_recorded(error)
        if isinstance(error, CoordinationRefused):
            self._owner.refused(error)

    # How offsets are written.

    async def _send(self, requests: list[Request]) -> Mapping[Partition, OwnedOffset | None]:
        """Records offsets; returns what is held of each partition now, None if it is another member's."""
        return {held.partition: held for held, _ in requests}

    def _settle(self, row: OwnedPartition, held: OwnedOffset | None) -> None:
        """Stores what is held of a row after a write."""
        row.held = held

    async def _settle_doubts(self, rows: Iterable[OwnedPartition]) -> None:
        """Finds out what is held of rows after a write that may have been carried out."""
        for row in rows:
            row.version_known = True

    def _written(self) -> None:
        """Called after each write."""

    async def _sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Starts the writer, and other work whose failure ends the session."""
        return asyncio.create_task(work)


class PartitionTable(Ownership):
    """The rows of one session; see the module."""

    def __init__(
        self, session: AnySession, owner: PartitionListener, options: SessionOptions, events: SessionEvents
    ) -> None:
        super().__init__(owner, options)
        self._session = session
        self._events = events
        self._revoke_timeout = options.revoke_timeout
        self._rows: dict[Partition, OwnedPartition] = {}
        self._claiming: frozenset[Partition] = frozenset()
        self._leaving: dict[Partition, OwnedPartition] = {}
        self._releasing: asyncio.Task[None] | None = None
        self._endings: set[asyncio.Task[None]] = set()
        self._calls: set[asyncio.Task[bool]] = set()
        self._lost_calls: set[asyncio.Task[bool]] = set()

    @property
    def connected(self) -> bool:
        # The session may know that it is in doubt before it says so.
        return not (self._closed or self._events.suspended) and self._session.state == "connected"

    @property
    def states(self) -> Mapping[Partition, State]:
        """The state of every row; none when the session is over."""
        return {} if self._closed else {partition: row.state for partition, row in self._rows.items()}

    @property
    def held(self) -> Mapping[Partition, OwnedPartition]:
        return {} if self._closed else {each: row for each, row in self._rows.items() if row.commits}

    def held_row(self, partition: Partition) -> OwnedPartition | None:
        row = None if self._closed else self._rows.get(partition)
        return row if row is not None and row.commits else None

    # Beginnings.

    async def claim(self, partitions: Iterable[Partition]) -> None:
        """Claims partitions that have no row or are unsure. One such call at a time.

        Raises:
            CoordinationLost: They are unsure now.
            SessionLost
        """
        wanted = self._claiming = frozenset(partitions)
        if not wanted:
            return
        try:
            got = await self._session.claim(wanted)
        except BaseException:
            self._rows |= {each: OwnedPartition(each, None) for each in wanted if each not in self._rows}
            raise
        finally:
            self._claiming = frozenset()
        if self._closed:
            return
        for partition in wanted:
            self._rows.pop(partition, None)
        new = {partition: OwnedPartition(partition, held) for partition, held in got.items()}
        self._rows |= new
        if new:
            self._assign(list(new.values()))
            self._events.changed.set()

    def give_up(self, partitions: Iterable[Partition]) -> None:
        """Begins to give up the owned ones of some partitions, each separately, and to release the unsure ones.

        A partition that is just being taken is given up when that has ended, because the order of both is unknown.
        """
        for partition in partitions:
            row = self._rows[partition]
            if row.state == "owned":
                row.state = "revoking"
                self._owner.stop([row])
                self._start(self._revoke_row(row))
            elif row.state == "unsure" and partition not in self._claiming:
                self._let_go(row)

    # Ends.

    def give_up_all(self, seconds: float) -> None:
        """Begins to give everything up, each within so many seconds."""
        self._revoke_timeout = seconds
        self.give_up(self.states)

    async def until_given_up(self, seconds: float) -> bool:
        """Waits until nothing is being given up or released any more, for a time, no longer than the session lasts.

        Returns whether that is so.
        """
        lost = asyncio.create_task(self._events.lost.wait())
        try:
            async with asyncio.timeout(seconds):
                while self._endings and not lost.done():
                    await asyncio.wait({lost, *self._endings}, return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            pass
        finally:
            lost.cancel()
        return not self._endings

    def close(self) -> None:
        """Ends everything at once, because the session is over: from now on nothing is held. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._stop_timer()
        for row in self._rows.values():
            row.state = "lost"
            row.fail(SessionLost("the session ended meanwhile"))
        self._owner.stop([row for row in self._rows.values() if row.notified])

    async def abandon(self) -> None:
        """Ends everything, calls the owner's ``lost`` for all that it has, and waits for it, but not for ever."""
        self.close()
        # A commit that is under way is not cancelled: that would not undo it at the service.
        await cancel(*(task for task in self._endings if task is not self._writer))
        for call in self._calls:
            call.cancel()
        # A callback that hangs holds up nothing but its own partitions.
        together: dict[frozenset[asyncio.Task[bool]], list[OwnedPartition]] = {}
        for row in self._rows.values():
            together.setdefault(frozenset(call for call in row.calls if not call.done()), []).append(row)
        for calls, rows in together.items():
            self._lose(rows, calls)
        if self._lost_calls:
            await asyncio.wait(self._lost_calls, timeout=2 * self._call_timeout)

    # The work.

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._endings.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._endings.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._events.failed(error)

    async def _send(self, requests: list[Request]) -> Mapping[Partition, OwnedOffset | None]:
        return await self._session.commit(requests)

    async def _sleep(self, seconds: float) -> None:
        await self._events.sleep(seconds)

    async def _settle_doubts(self, rows: Iterable[OwnedPartition]) -> None:
        if doubtful := [row for row in rows if not row.version_known]:
            again = await self._session.claim([row.partition for row in doubtful])
            for row in doubtful:
                self._settle(row, again.get(row.partition))

    def _settle(self, row: OwnedPartition, held: OwnedOffset | None) -> None:
        # None: another owner, or our version is stale.
        row.version_known = held is not None
        if held is not None:
            row.held = held
        elif not self._closed:
            log.warning("this member no longer owns %s", row.partition)
            if row.pending_offset is not None:
                one = frozenset([row.partition])
                self._not_recorded(NotOwner(f"this member no longer owns {row.partition}", one))
            self._drop(row)
            owned = row.state == "owned"
            self._let_go(row)
            if owned:
                self._owner.stop([row])
                self._start(self._notify_lost(row))

    async def _revoke_row(self, row: OwnedPartition) -> None:
        """Revokes and releases a partition; calls ``lost`` if the owner does not stop in time."""
        before = list(row.calls)

        async def tell() -> None:
            if before:
                await asyncio.wait(before)
            await self._owner.revoke(row)
            row.notified = False

        call = self._call("revoke", tell, self._calls)
        row.calls.append(call)
        await asyncio.wait({call}, timeout=self._revoke_timeout)
        if not call.done():
            log.warning("%s is released although its messages are not finished", row.partition)
            call.cancel()
        self._let_go(row)
        await self._notify_lost(row)

    async def _notify_lost(self, row: OwnedPartition) -> None:
        """Calls the owner's ``lost`` if it still believes to have the partition, after the calls before have ended."""
        await asyncio.wait({self._lose([row], row.calls)}, timeout=2 * self._call_timeout)
        row.end_notified = True
        self._forget(row)

    @property
    def _call_timeout(self) -> float:
        """Timeout in seconds for calls of a row to end before the next one is made."""
        return max(self._options.revoke_timeout, CANCEL_GRACE)

    def _let_go(self, row: OwnedPartition) -> None:
        """Accepts no more commits for a partition, and begins to release it."""
        if self._closed:
            return
        row.state = "releasing"
        if row.partition in self._pending:
            self._write_pending()  # before it is released
        if not row.released:
            self._leaving[row.partition] = row
            self._written()

    def _written(self) -> None:
        if self._releasing is None and self._leaving.keys() - self._pending.keys():
            self._releasing = self._start(self._release_all())

    async def _release_all(self) -> None:
        """Releases what is to be, all that has come together in one call, until nothing is."""
        # Tasks that are ready to run can add their own first.
        await asyncio.sleep(0)
        failures = 0
        while rows := [row for partition, row in self._leaving.items() if partition not in self._pending]:
            try:
                await self._session.release([row.partition for row in rows])
            except SessionLost:
                raise
            except CoordinationError as error:
                if isinstance(error, CoordinationRefused):
                    self._owner.refused(error)
                failures += 1
                await self._events.sleep(self._options.pause(failures))
                continue
            for row in rows:
                del self._leaving[row.partition]
                row.released = True
                self._forget(row)
        self._releasing = None

    def _forget(self, row: OwnedPartition) -> None:
        """Removes a row whose partition is released, once its owner was notified of the end."""
        if row.finished and self._rows.get(row.partition) is row and not self._closed:
            del self._rows[row.partition]
            self._events.changed.set()

    # Notifying the owner.

    def _assign(self, rows: list[OwnedPartition]) -> None:
        async def tell() -> None:
            # Not before: if it is over by then, the owner need not hear that anything is lost.
            if self._closed:
                return
            for row in rows:
                row.notified = True
            await self._owner.assigned(rows)

        telling = self._call("assigned", tell, self._calls)
        for row in rows:
            row.calls.append(telling)

    def _lose(self, rows: list[OwnedPartition], before: Collection[asyncio.Task[bool]]) -> asyncio.Task[bool]:
        """Begins to notify the owner that rows are lost which it still believes to have, after some calls."""

        async def tell() -> None:
            if before:
                await asyncio.wait(before, timeout=self._call_timeout)
            informed = [row for row in rows if row.notified]
            for row in informed:
                row.notified = False
            if informed:
                await self._owner.lost(informed)

        return self._call("lost", tell, self._lost_calls)

    @staticmethod
    def _call(what: str, call: Callable[[], Awaitable[None]], running: set[asyncio.Task[bool]]) -> asyncio.Task[bool]:
        """Starts a call to the owner; its failure is its own."""

        async def guarded() -> bool:
            try:
                await call()
            except SessionLost as error:
                log.debug("a callback did not end in time for %s: %s", what, error)
            except Exception:
                log.exception("the callback %s failed", what)
            else:
                return True
            return False

        return start(guarded(), running)
