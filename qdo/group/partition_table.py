"""The partitions of one session, with one row for each.

::

    none ──claimed──► owned ──unassigned, left──► revoking ──done, timeout──► releasing ──released, notified──► none
     │                │ ▲                          │                              ▲  ▲
     │ outcome of     │ │                          └──another member owns it──────┤  │
     │ the claim      └─┼──another member owns it, or another version─────────────┘  │
     ▼ unknown          │                                                            │
    unsure ──claimed again, or none                                                  │
       └──────────────────────assigned to another member─────────────────────────────┘

    every state ──the session is lost──► lost (final)

owned       the listener (the consumer) is notified and works on the partition. Commits are accepted.
revoking    the listener is asked to stop. Commits are still accepted.
releasing   new commits are refused; pending ones are written first. The release is retried until it succeeds. If the
            listener had not finished, it is notified that the partition is lost.
unsure      the partition may be owned or not; the listener is not notified. It is claimed again if it is still assigned
            to this member, else released.
lost        the session has ended: nothing is recorded, and ``lost`` is called for every row of the listener.

A row is one ownership of a partition, and calls in progress belong to a row. A row is removed when its partition is
released *and* the listener was notified of the end; only then can the partition be claimed again. So the listener is
notified in order for each partition. ``lost`` waits for calls in progress, including cancelled ones, and the next claim
of the partition waits for ``lost``: each for at most ``revoke_timeout`` (or ``CANCEL_GRACE`` if that is longer). The
listener ignores late calls for a former row.

**Commits.** A row has one pending offset, the last one requested. It replaces an earlier one that is still pending. All
pending offsets are buffered in :class:`Ownership`. If the outcome of a commit is unknown, the partition is claimed
again first, which returns its version.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping
from typing import Any

from qdo.errors import CoordinationError, CoordinationLost, CoordinationRefused, InvalidArgument, NotOwner, SessionLost
from qdo.group.callbacks import PartitionListener
from qdo.group.offsets import PartitionOwnership, PendingCommit, State
from qdo.group.protocol import Session
from qdo.group.records import HandlingNote, SessionOffset
from qdo.group.session_events import DEFAULT_OPTIONS, SessionEvents, SessionOptions
from qdo.loops import CANCEL_GRACE, cancel, start_task
from qdo.partitions import Partition, join_first

log = logging.getLogger(__name__)

Request = tuple[SessionOffset, str | None]
"""The held offset of a row with its note, and the id to record."""
MAX_NAMED = 5


class Ownership:
    """The owned partitions of a consumer (none in this class), and a buffer with one pending offset for each.

    ::

        pending ──enough messages, timeout, or a caller waits──► due ──written──► recorded

    All pending offsets are written together by :meth:`_send`. While the service does not answer, writes are retried for
    as long as this member owns the partition, whether a caller waits or not.
    """

    def __init__(self, owner: PartitionListener, options: SessionOptions = DEFAULT_OPTIONS) -> None:
        self._owner = owner
        self._options = options
        self._pending: dict[Partition, PartitionOwnership] = {}
        self._writer: asyncio.Task[None] | None = None
        self._messages = 0
        self._timer: asyncio.TimerHandle | None = None
        self._due = False
        self._closed = False

    @property
    def connected(self) -> bool:
        return False

    @property
    def held(self) -> Mapping[Partition, PartitionOwnership]:
        return {}

    def held_row(self, partition: Partition) -> PartitionOwnership | None:
        return self.held.get(partition)

    async def commit(self, offsets: Mapping[Partition, str], *, back: bool = False) -> None:
        """Checks ids of last processed messages and records them; ids that are recorded already cost nothing.

        Args:
            offsets: The ids.
            back: Allows ids before the committed ones.

        Raises:
            InvalidArgument: An id cannot be committed. Nothing was committed.
            NotOwner: This member no longer owns some of the partitions; the offsets of the rest were recorded.
            CoordinationLost: Each offset may or may not have been recorded.
            SessionLost
        """
        rows = {p: row for p in offsets if (row := self.held_row(p)) is not None and row.begun}
        lost = frozenset(offsets.keys() - rows.keys())
        changed = [row for p, row in rows.items() if row.needs_recording(offsets[p], back=back)]
        sought = [row for row in changed if row.seek_pending]
        for row in changed:
            row.set_pending_offset(offsets[row.partition], back=back)
        try:
            lost |= await self.flush(changed) if changed else lost
        except BaseException:
            # The outcome is unknown: after a seek, the next commit may have to go back again.
            for row in sought:
                row.seek_pending = True
            raise
        if lost:
            raise NotOwner(f"no longer owned by this member: {join_first(lost, MAX_NAMED)}", lost)

    async def record(self, offsets: Mapping[Partition, str]) -> frozenset[Partition]:
        rows = [row for partition in offsets if (row := self.held_row(partition)) is not None]
        for row in rows:
            row.set_pending_offset(offsets[row.partition])
        return frozenset(offsets) - {row.partition for row in rows} | await self.flush(rows)

    def schedule_commit(self, row: PartitionOwnership, offset: str, messages: int) -> None:
        """Schedules the commit of a last handled message, together with others; logs it if the id cannot be committed.

        Args:
            row: The ownership; ignored if it is over.
            offset: The id.
            messages: Number of messages handled since the last call.
        """
        try:
            if not row.accepts_commits or not row.needs_recording(offset):
                return
        except InvalidArgument as error:
            self._report_failure(error)
            return
        row.set_pending_offset(offset)
        self._pending[row.partition] = row
        self._messages += messages
        if self._messages >= self._options.commit_messages:
            self._start_writing_pending()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(
                self._options.commit_seconds, self._start_writing_pending
            )

    async def flush(self, rows: Collection[PartitionOwnership], deadline: float | None = None) -> frozenset[Partition]:
        """Records the pending offsets of some rows at once; returns the same as :meth:`record`.

        Args:
            rows: The ownerships.
            deadline: When retries end, by the loop's clock; None means after ``patience`` seconds.

        Raises:
            CoordinationLost: Each offset may or may not have been recorded.
            SessionLost
        """
        if self._closed:
            raise SessionLost("the session has ended")
        ours = [row for row in rows if row.accepts_commits]
        lost = frozenset(row.partition for row in rows if not row.accepts_commits)
        if not ours:
            return lost
        commit = PendingCommit(len(ours), deadline or asyncio.get_running_loop().time() + self._options.patience)
        for row in ours:
            row.waiting_commits.append(commit)
            self._pending[row.partition] = row
        self._start_writing_pending()
        return lost | await asyncio.shield(commit.end)

    async def record_note(self, row: PartitionOwnership, note: HandlingNote | None) -> None:
        """Records a note of begun messages with a partition's offset, in one write with pending offsets.

        Raises:
            NotOwner: The ownership is over.
            CoordinationLost, SessionLost
        """
        if row.accepts_commits:
            row.note = note
        if await self.flush([row]):
            raise NotOwner(f"{row.partition} is not owned by this member", frozenset([row.partition]))

    def _start_writing_pending(self) -> None:
        self._messages = 0
        self._stop_timer()
        self._due = bool(self._pending)
        if self._due and self._writer is None and not self._closed:
            self._writer = self._start(self._write_all())

    def _drop(self, row: PartitionOwnership) -> None:
        self._pending.pop(row.partition, None)
        row.complete_commits(recorded=False)

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
            except Exception as error:  # noqa: BLE001 - reported to the caller of the commit and the listeners
                failures += 1
                self._due = True
                await self._sleep(self._handle_failed_write(rows, error, failures))
            self._after_write()
        self._writer = None

    async def _write(self, rows: list[PartitionOwnership]) -> None:
        """Writes once and completes the recorded commits.

        Rows whose version is in doubt are claimed first. After an error the versions of the written rows are in doubt.
        """
        await self._reclaim_doubtful(rows)
        sent = [
            (row, row.pending_offset, row.note, len(row.waiting_commits), row.make_commit_request())
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
            self._apply_result(row, results.get(row.partition))
            if not row.version_known:
                continue
            if offset is not None:
                recorded[row.partition] = offset, row.pending_back
            if row.pending_offset == offset and row.note == note:
                del self._pending[row.partition]
                row.complete_commits(recorded=True)
            else:
                row.complete_commits(waiting, recorded=True)
        if recorded:
            for listener in self._options.commit_listeners:
                listener.recorded(recorded)

    def _handle_failed_write(self, rows: list[PartitionOwnership], error: Exception, failures: int) -> float:
        self._report_failure(error, failures, waited=all(row.waiting_commits for row in rows))
        pause = self._options.pause(failures)
        now = asyncio.get_running_loop().time()
        for row in rows:
            if isinstance(error, CoordinationLost) and row.accepts_commits:
                row.fail_commits(error, due=now + pause)
            elif row.partition in self._pending:
                row.fail_commits(error)
                self._drop(row)
        return pause if self._pending else 0.0

    def _report_failure(self, error: Exception, failures: int = 1, *, waited: bool = False) -> None:
        quiet = waited or failures > 1
        log.log(logging.DEBUG if quiet else logging.WARNING, "some offsets were not committed: %s", error)
        for listener in self._options.commit_listeners:
            listener.not_recorded(error)
        if isinstance(error, CoordinationRefused):
            self._owner.refused(error)

    # Writing offsets

    async def _send(self, requests: list[Request]) -> Mapping[Partition, SessionOffset | None]:
        """Records offsets; returns the new state of each partition, or None if another member owns it."""
        return {held.partition: held for held, _ in requests}

    def _apply_result(self, row: PartitionOwnership, held: SessionOffset | None) -> None:
        row.held = held

    async def _reclaim_doubtful(self, rows: Iterable[PartitionOwnership]) -> None:
        for row in rows:
            row.version_known = True

    def _after_write(self) -> None:
        """Called after each write."""

    async def _sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return asyncio.create_task(work)


class PartitionTable(Ownership):
    """The rows of one session; see the module."""

    def __init__(
        self, session: Session, owner: PartitionListener, options: SessionOptions, events: SessionEvents
    ) -> None:
        super().__init__(owner, options)
        self._session = session
        self._events = events
        self._revoke_timeout = options.revoke_timeout
        self._rows: dict[Partition, PartitionOwnership] = {}
        self._claiming: frozenset[Partition] = frozenset()
        self._leaving: dict[Partition, PartitionOwnership] = {}
        self._releasing: asyncio.Task[None] | None = None
        self._endings: set[asyncio.Task[None]] = set()
        self._calls: set[asyncio.Task[bool]] = set()
        self._lost_calls: set[asyncio.Task[bool]] = set()

    @property
    def connected(self) -> bool:
        # The session's state may change before its event arrives.
        return not (self._closed or self._events.suspended) and self._session.state == "connected"

    @property
    def states(self) -> Mapping[Partition, State]:
        return {} if self._closed else {partition: row.state for partition, row in self._rows.items()}

    @property
    def held(self) -> Mapping[Partition, PartitionOwnership]:
        return {} if self._closed else {p: row for p, row in self._rows.items() if row.accepts_commits}

    def held_row(self, partition: Partition) -> PartitionOwnership | None:
        row = None if self._closed else self._rows.get(partition)
        return row if row is not None and row.accepts_commits else None

    # Claims

    async def claim(self, partitions: Iterable[Partition]) -> None:
        """Claims partitions that have no row or are unsure, and starts to announce partitions that this session got.

        Rows of the others are removed. Only one call may run at a time.

        Raises:
            CoordinationLost: The partitions are unsure now.
            SessionLost
        """
        claiming = self._claiming = frozenset(partitions)
        if not claiming:
            return
        try:
            claimed = await self._session.claim(claiming)
        except BaseException:
            self._rows |= {p: PartitionOwnership(p, None) for p in claiming if p not in self._rows}
            raise
        finally:
            self._claiming = frozenset()
        if self._closed:
            return
        for partition in claiming:
            self._rows.pop(partition, None)
        new = {partition: PartitionOwnership(partition, held) for partition, held in claimed.items()}
        self._rows |= new
        if new:
            self._start_assigned_call(list(new.values()))
            self._events.changed.set()

    def give_up(self, partitions: Iterable[Partition]) -> None:
        """Starts to revoke owned partitions, each separately, and to release unsure ones.

        An unsure partition that is just being claimed is skipped until the claim has ended, because the order of claim
        and release is undefined.
        """
        for partition in partitions:
            row = self._rows[partition]
            if row.state == "owned":
                row.state = "revoking"
                self._owner.stop([row])
                self._start(self._revoke_row(row))
            elif row.state == "unsure" and partition not in self._claiming:
                self._start_release(row)

    # Releases

    def give_up_all(self, seconds: float) -> None:
        """Gives up all partitions. Revocations that begin from now on time out after ``seconds``."""
        self._revoke_timeout = seconds
        self.give_up(self.states)

    async def wait_until_given_up(self, seconds: float) -> bool:
        """Waits until all revocations and releases have ended, but no longer than the session lasts.

        Returns:
            Whether they have ended.
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
        """Ends all ownerships, because the session has ended: fails waiting commits, stops the listener. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._stop_timer()
        for row in self._rows.values():
            row.state = "lost"
            row.fail_commits(SessionLost("the session ended meanwhile"))
        self._owner.stop([row for row in self._rows.values() if row.notified])

    async def abandon(self) -> None:
        """Closes the table, calls the listener's ``lost`` for its rows, and waits for these calls up to a timeout."""
        self.close()
        # Commits in flight are not cancelled: that would not undo them at the service.
        await cancel(*(task for task in self._endings if task is not self._writer))
        for call in self._calls:
            call.cancel()
        # A hanging callback delays only its own partitions.
        rows_by_calls: dict[frozenset[asyncio.Task[bool]], list[PartitionOwnership]] = {}
        for row in self._rows.values():
            rows_by_calls.setdefault(frozenset(call for call in row.calls if not call.done()), []).append(row)
        for calls, rows in rows_by_calls.items():
            self._start_lost_call(rows, calls)
        if self._lost_calls:
            await asyncio.wait(self._lost_calls, timeout=2 * self._call_timeout)

    # Background work

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._endings.add(task)
        task.add_done_callback(self._on_task_end)
        return task

    def _on_task_end(self, task: asyncio.Task[None]) -> None:
        self._endings.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._events.end_after_failure(error)

    async def _send(self, requests: list[Request]) -> Mapping[Partition, SessionOffset | None]:
        return await self._session.commit(requests)

    async def _sleep(self, seconds: float) -> None:
        await self._events.sleep(seconds)

    async def _reclaim_doubtful(self, rows: Iterable[PartitionOwnership]) -> None:
        if doubtful := [row for row in rows if not row.version_known]:
            claimed = await self._session.claim([row.partition for row in doubtful])
            for row in doubtful:
                self._apply_result(row, claimed.get(row.partition))

    def _apply_result(self, row: PartitionOwnership, held: SessionOffset | None) -> None:
        # Stores the state after a write. If it is None, releases the row and notifies the listener of the loss.
        # None means that another member owns the partition, or that this version is stale.
        row.version_known = held is not None
        if held is not None:
            row.held = held
        elif not self._closed:
            log.warning("this member no longer owns %s", row.partition)
            if row.pending_offset is not None:
                lost = frozenset([row.partition])
                self._report_failure(NotOwner(f"this member no longer owns {row.partition}", lost))
            self._drop(row)
            owned = row.state == "owned"
            self._start_release(row)
            if owned:
                self._owner.stop([row])
                self._start(self._notify_lost(row))

    async def _revoke_row(self, row: PartitionOwnership) -> None:
        before = list(row.calls)

        async def revoke() -> None:
            if before:
                await asyncio.wait(before)
            await self._owner.revoke(row)
            row.notified = False

        call = self._start_call("revoke", revoke, self._calls)
        row.calls.append(call)
        await asyncio.wait({call}, timeout=self._revoke_timeout)
        if not call.done():
            log.warning("%s is released although its messages are not finished", row.partition)
            call.cancel()
        self._start_release(row)
        await self._notify_lost(row)

    async def _notify_lost(self, row: PartitionOwnership) -> None:
        await asyncio.wait({self._start_lost_call([row], row.calls)}, timeout=2 * self._call_timeout)
        row.end_notified = True
        self._forget_if_finished(row)

    @property
    def _call_timeout(self) -> float:
        return max(self._options.revoke_timeout, CANCEL_GRACE)

    def _start_release(self, row: PartitionOwnership) -> None:
        if self._closed:
            return
        row.state = "releasing"
        if row.partition in self._pending:
            self._start_writing_pending()  # before the release
        if not row.released:
            self._leaving[row.partition] = row
            self._after_write()

    def _after_write(self) -> None:
        if self._releasing is None and self._leaving.keys() - self._pending.keys():
            self._releasing = self._start(self._release_all())

    async def _release_all(self) -> None:
        # Let tasks that are ready to run add their rows first.
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
                self._forget_if_finished(row)
        self._releasing = None

    def _forget_if_finished(self, row: PartitionOwnership) -> None:
        if row.finished and self._rows.get(row.partition) is row and not self._closed:
            del self._rows[row.partition]
            self._events.changed.set()

    # Calls to the listener

    def _start_assigned_call(self, rows: list[PartitionOwnership]) -> None:
        async def notify() -> None:
            # Set this only now: if the session has ended by then, the listener needs no ``lost`` call.
            if self._closed:
                return
            for row in rows:
                row.notified = True
            await self._owner.assigned(rows)

        call = self._start_call("assigned", notify, self._calls)
        for row in rows:
            row.calls.append(call)

    def _start_lost_call(
        self, rows: list[PartitionOwnership], earlier_calls: Collection[asyncio.Task[bool]]
    ) -> asyncio.Task[bool]:
        async def notify() -> None:
            if earlier_calls:
                await asyncio.wait(earlier_calls, timeout=self._call_timeout)
            notified_rows = [row for row in rows if row.notified]
            for row in notified_rows:
                row.notified = False
            if notified_rows:
                await self._owner.lost(notified_rows)

        return self._start_call("lost", notify, self._lost_calls)

    @staticmethod
    def _start_call(
        what: str, call: Callable[[], Awaitable[None]], running: set[asyncio.Task[bool]]
    ) -> asyncio.Task[bool]:
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

        return start_task(guarded(), running)
