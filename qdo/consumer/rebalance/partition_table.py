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
older one is not sent again once a newer one was asked for. All of them wait in one :class:`CommitBuffer`. When the end
of a commit is not known, the partition is taken again first, which tells its version.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping
from typing import Any

from qdo.consumer.owned_partition import OwnedPartition, PendingCommit, State
from qdo.consumer.partition_listener import PartitionListener
from qdo.consumer.rebalance.ownership import Ownership
from qdo.consumer.rebalance.session_events import SessionEvents, SessionOptions
from qdo.coordination import AnySession, OwnedOffset
from qdo.errors import CoordinationError, CoordinationLost, CoordinationRefused, NotOwner, SessionLost
from qdo.partitions import Partition
from qdo.tasks import CANCEL_GRACE, cancel, start

log = logging.getLogger(__name__)


class CommitBuffer:
    """The offsets of one session that are to be recorded: of each partition the one that was asked for last.

    ::

        pending ──enough messages, or enough time, or a caller waits──► due ──written──► recorded

    Everything that is pending is written together; how, the session decides. While the service does not answer it is
    tried again, for as long as the partition is ours, whether a caller waits or not.

    Args:
        session: Writes offsets, and takes partitions again whose version is in doubt.
        options: With the two thresholds, and the listeners.
        events: Of the session.
        begin: Starts the writer.
        settled: Called after a write with a row and what is held of it now, None if that is another member's.
        written: Called after each write.
        refused: Called when the service refuses a write.

    Attributes:
        rows: With something to be recorded.
        writer: The task that writes, None if nothing is due.
    """

    def __init__(
        self,
        session: AnySession,
        options: SessionOptions,
        events: SessionEvents,
        *,
        begin: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
        settled: Callable[[OwnedPartition, OwnedOffset | None], None],
        written: Callable[[], None],
        refused: Callable[[CoordinationRefused], None],
    ) -> None:
        self.rows: dict[Partition, OwnedPartition] = {}
        self.writer: asyncio.Task[None] | None = None
        self._session = session
        self._options = options
        self._events = events
        self._begin = begin
        self._settled = settled
        self._written = written
        self._refused = refused
        self._messages = 0
        self._timer: asyncio.TimerHandle | None = None
        self._due = False
        self._closed = False

    def add(self, row: OwnedPartition, offset: str, messages: int) -> None:
        if not row.commits or not row.accepts(offset):
            return
        row.want(offset)
        self.rows[row.partition] = row
        self._messages += messages
        if self._messages >= self._options.commit_messages:
            self.write()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._options.commit_seconds, self.write)

    async def flush(self, rows: Collection[OwnedPartition], deadline: float | None) -> frozenset[Partition]:
        if not rows:
            return frozenset()
        commit = PendingCommit(len(rows), deadline or asyncio.get_running_loop().time() + self._options.patience)
        for row in rows:
            row.waiting_commits.append(commit)
            self.rows[row.partition] = row
        self.write()
        return await asyncio.shield(commit.end)

    def write(self) -> None:
        """Begins to write everything that is pending."""
        self._messages = 0
        self._stop_timer()
        self._due = bool(self.rows)
        if self._due and self.writer is None and not self._closed:
            self.writer = self._begin(self._write_all())

    def drop(self, row: OwnedPartition) -> None:
        """What is pending of a row is not recorded any more."""
        self.rows.pop(row.partition, None)
        row.answer(recorded=False)

    def not_recorded(self, error: Exception, failures: int) -> None:
        for listener in self._options.commit_listeners:
            listener.not_recorded(error, failures)

    def close(self) -> None:
        """The session is over."""
        self._closed = True
        self._stop_timer()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def _write_all(self) -> None:
        failures = 0
        while self._due and self.rows and not self._closed:
            self._due = False
            rows = list(self.rows.values())
            try:
                await self._write(rows)
                failures = 0
            except SessionLost:
                raise
            except Exception as error:  # noqa: BLE001 - the caller of the commit gets it, and the listener
                failures += 1
                self._due = True
                await self._events.sleep(self._put_off(rows, error, failures))
            self._written()
        self.writer = None

    async def _write(self, rows: list[OwnedPartition]) -> None:
        """Writes what is pending of some rows once."""
        await self._settle_doubts(rows)
        sent = [
            (row, row.pending_offset, row.note, len(row.waiting_commits), row.request())
            for row in rows
            if row.version_known and row.partition in self.rows
        ]
        if not sent:
            return
        try:
            results = await self._session.commit([request for *_, request in sent])
        except BaseException:
            for row, *_ in sent:
                row.version_known = False
            raise
        recorded: dict[Partition, tuple[str, bool]] = {}
        for row, offset, note, waiting, _ in sent:
            self._settled(row, results.get(row.partition))
            if not row.version_known:
                continue
            if offset is not None:
                recorded[row.partition] = offset, row.pending_back
            if row.pending_offset == offset and row.note == note:
                del self.rows[row.partition]
                row.answer(recorded=True)
            else:
                row.answer(waiting, recorded=True)
        if recorded:
            for listener in self._options.commit_listeners:
                listener.recorded(recorded)

    async def _settle_doubts(self, rows: Iterable[OwnedPartition]) -> None:
        """Takes rows again of which it is not known whether the last write was carried out."""
        if doubtful := [row for row in rows if not row.version_known]:
            again = await self._session.claim([row.partition for row in doubtful])
            for row in doubtful:
                self._settled(row, again.get(row.partition))

    def _put_off(self, rows: Iterable[OwnedPartition], error: Exception, failures: int) -> float:
        """Returns after how long a failed commit is tried again; calls for which that is too late get the error."""
        if isinstance(error, CoordinationRefused):
            self._refused(error)
        pause = self._options.pause(failures)
        now = asyncio.get_running_loop().time()
        for row in rows:
            if isinstance(error, CoordinationLost) and row.commits:
                row.fail(error, due=now + pause)
            elif row.partition in self.rows:
                row.fail(error)
                self.drop(row)
        self.not_recorded(error, failures)
        return pause if self.rows else 0.0


class PartitionTable(Ownership):
    """The rows of one session; see the module."""

    def __init__(
        self, session: AnySession, owner: PartitionListener, options: SessionOptions, events: SessionEvents
    ) -> None:
        self._session = session
        self._owner = owner
        self._options = options
        self._events = events
        self._revoke_timeout = options.revoke_timeout
        self._rows: dict[Partition, OwnedPartition] = {}
        self._closed = False
        self._claiming: frozenset[Partition] = frozenset()
        self._leaving: dict[Partition, OwnedPartition] = {}
        self._releasing: asyncio.Task[None] | None = None
        self._endings: set[asyncio.Task[None]] = set()
        self._calls: set[asyncio.Task[bool]] = set()
        self._lost_calls: set[asyncio.Task[bool]] = set()
        self._commits = CommitBuffer(
            session,
            options,
            events,
            begin=self._start,
            settled=self._settle,
            written=self._let_leave,
            refused=owner.refused,
        )

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

    def add(self, row: OwnedPartition, offset: str, messages: int) -> None:
        self._commits.add(row, offset, messages)

    async def flush(self, rows: Collection[OwnedPartition], deadline: float | None = None) -> frozenset[Partition]:
        if self._closed:
            raise SessionLost("the session has ended")
        ours = [row for row in rows if row.commits]
        return frozenset(row.partition for row in rows if not row.commits) | await self._commits.flush(ours, deadline)

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
        self._commits.close()
        for row in self._rows.values():
            row.state = "lost"
            row.fail(SessionLost("the session ended meanwhile"))
        self._owner.stop([row for row in self._rows.values() if row.notified])

    async def abandon(self) -> None:
        """Ends everything, calls the owner's ``lost`` for all that it has, and waits for it, but not for ever."""
        self.close()
        # A commit that is under way is not cancelled: that would not undo it at the service.
        await cancel(*(task for task in self._endings if task is not self._commits.writer))
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
        """Starts work whose failure ends the session."""
        task = asyncio.create_task(work)
        self._endings.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._endings.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._events.failed(error)

    def _settle(self, row: OwnedPartition, held: OwnedOffset | None) -> None:
        """Stores what is held of a row now; None: another owner, or our version is stale."""
        row.version_known = held is not None
        if held is not None:
            row.held = held
        elif not self._closed:
            log.warning("this member no longer owns %s", row.partition)
            if row.pending_offset is not None:
                one = frozenset([row.partition])
                self._commits.not_recorded(NotOwner(f"this member no longer owns {row.partition}", one), 1)
            self._commits.drop(row)
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
        if row.partition in self._commits.rows:
            self._commits.write()  # before it is released
        if not row.released:
            self._leaving[row.partition] = row
            self._let_leave()

    def _let_leave(self) -> None:
        if self._releasing is None and self._leaving.keys() - self._commits.rows.keys():
            self._releasing = self._start(self._release_all())

    async def _release_all(self) -> None:
        """Releases what is to be, all that has come together in one call, until nothing is."""
        # Tasks that are ready to run can add their own first.
        await asyncio.sleep(0)
        failures = 0
        while rows := [row for partition, row in self._leaving.items() if partition not in self._commits.rows]:
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
