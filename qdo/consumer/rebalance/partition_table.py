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
older one is not sent again once a newer one was asked for. When the end of a commit is not known, the partition is
taken again first, which tells its version.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping
from typing import Any, Final, NamedTuple, Protocol

from qdo.consumer.offset_mirror import OffsetMirror
from qdo.consumer.owned_partition import OwnedPartition, PendingCommit, State
from qdo.coordination import AnySession, Event, HandlingNote, OwnedOffset
from qdo.errors import CoordinationError, CoordinationLost, CoordinationRefused, NotOwner, SessionLost
from qdo.partitions import Partition, some
from qdo.tasks import CANCEL_GRACE, cancel, happens, start
from queuey.client import RetryPolicy

log = logging.getLogger(__name__)

MAX_NAMED = 5
"""Max partitions that an error names."""
_BACKOFF = RetryPolicy(base=0.1, cap=2.0)
"""Pauses between attempts while the service does not answer."""


class SessionOptions(NamedTuple):
    """The behaviour of a member.

    Attributes:
        settle: Seconds for which changes gather before it sets the target, when it leads; see
            :mod:`qdo.consumer.rebalance.member_states`.
        grace: Seconds for which absent static members keep their partitions.
        revoke_timeout: Seconds after which a partition is released even if its owner is not done.
        patience: Seconds for which a commit is tried again while the service does not answer, and for which the end
            of what is under way is waited for when the group is left.
        recheck: Seconds after which it checks again without a reported change.
        now: The clock, seconds since 1970.
        draw: Random numbers from 0 to 1.
    """

    settle: float = 0.05
    grace: float = 0.0
    revoke_timeout: float = 30.0
    patience: float = 10.0
    recheck: float = 60.0
    now: Callable[[], float] = time.time
    draw: Callable[[], float] = random.random

    def pause(self, failures: int) -> float:
        """Returns the seconds to wait after so many failures in a row."""
        return _BACKOFF.pause(failures, self.draw())


DEFAULT_OPTIONS: Final = SessionOptions()


class SessionEvents:
    """The events of a session.

    Args:
        notified: Called with every event, at once.

    Attributes:
        changed: There is something to check.
        lost: The session is over.
        over: It is, or is to be left.
        suspended: The service does not answer at present.
    """

    def __init__(self, notified: Callable[[Event], None]) -> None:
        self.changed = asyncio.Event()
        self.lost = asyncio.Event()
        self.over = asyncio.Event()
        self.suspended = False
        self._on_event = notified

    def __call__(self, event: Event) -> None:
        if self.lost.is_set():
            return
        if event == "lost":
            self.lost.set()
            self.over.set()
        elif event != "changed":
            self.suspended = event == "suspended"
        self.changed.set()
        self._on_event(event)

    async def sleep(self, seconds: float) -> None:
        """Sleeps.

        Raises:
            SessionLost: The session ended meanwhile.
        """
        if await happens(self.lost, seconds):
            raise SessionLost("the session has ended")

    def ended(self, task: asyncio.Task[None]) -> None:
        """Handles the end of work that the member cannot do without: its failure ends the session."""
        if task.cancelled() or (error := task.exception()) is None:
            return
        if not isinstance(error, SessionLost):
            log.error("an error in the group member; its session ends", exc_info=error)
        self("lost")


class Owner(Protocol):
    """Works on partitions. Everything is called in the loop of the group.

    For a row, ``assigned`` is called, then ``revoke`` or ``lost``, or both if revoking was not done in time. Each call
    has ended before the next of its row begins, unless it takes longer than ``revoke_timeout`` to end. A partition may
    come back as another row while a call of the former one still hangs. What a call raises is logged; if ``revoke``
    fails, ``lost`` follows.
    """

    async def assigned(self, rows: Collection[OwnedPartition]) -> None:
        """These are ours now; commits for them are accepted already while this runs."""

    def stop(self, rows: Collection[OwnedPartition]) -> None:
        """Stop handing out messages of these; called as soon as they are not ``owned`` any more."""

    async def revoke(self, row: OwnedPartition) -> None:
        """Returns when this may be released.

        Called once per partition, so that a slow one does not hold up the rest; the calls run concurrently. It is
        cancelled after ``revoke_timeout``.
        """

    async def lost(self, rows: Collection[OwnedPartition]) -> None:
        """These are lost to other members: abandon all work on them; nothing can be committed."""

    def refused(self, error: CoordinationRefused) -> None:
        """The service refuses something that the member cannot do without; it is tried again all the same."""

    def suspended(self) -> None:
        """The service does not answer: hand out nothing new."""

    def resumed(self) -> None:
        """The service answers again: go on with what is still held."""


class Ownership:
    """The partitions of a consumer; of this one: none."""

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

    async def commit(
        self, offsets: Mapping[Partition, str], mirror: OffsetMirror | None = None, *, back: bool = False
    ) -> None:
        """Checks the ids of last processed messages and records them; what is recorded already costs nothing.

        Args:
            offsets: The ids.
            mirror: Gets them as well.
            back: They may lie before what was committed.

        Raises:
            InvalidArgument: One of them cannot be committed; none was.
            NotOwner: Some partitions are no longer this member's; the offsets of the rest were recorded.
            CoordinationLost: Each was recorded or not.
            SessionLost
        """
        rows = {each: row for each in offsets if (row := self.held_row(each)) is not None and row.begun}
        lost = frozenset(offsets.keys() - rows.keys())
        new = {each: offsets[each] for each, row in rows.items() if row.accepts(offsets[each], back=back)}
        sought = [rows[each] for each in new if rows[each].seek_pending]
        for row in sought:
            row.seek_pending = False
        try:
            lost |= await self.record(new) if new else lost
        except BaseException:
            # Recorded or not: a caller that went back may have to do so again.
            for row in sought:
                row.seek_pending = True
            raise
        if mirror is not None:
            moved = {row.partition for row in sought}
            mirror.record({each: (new[each], back or each in moved) for each in new.keys() - lost})
        if lost:
            raise NotOwner(f"no longer owned by this member: {some(lost, MAX_NAMED)}", lost)

    async def record(self, offsets: Mapping[Partition, str]) -> frozenset[Partition]:
        """Records the last processed ids; returns the partitions that are not ours, for which nothing was recorded."""
        return frozenset(offsets)

    async def note(self, _partition: Partition, _note: HandlingNote | None) -> bool:
        """Records a note beside a partition's offset; returns whether the partition is ours."""
        return False


class PartitionTable(Ownership):
    """The rows of one session; see the module."""

    def __init__(self, session: AnySession, owner: Owner, options: SessionOptions, events: SessionEvents) -> None:
        self._session = session
        self._owner = owner
        self._options = options
        self._events = events
        self._revoke_timeout = options.revoke_timeout
        self._rows: dict[Partition, OwnedPartition] = {}
        self._closed = False
        self._claiming: frozenset[Partition] = frozenset()
        self._due: dict[Partition, OwnedPartition] = {}
        self._leaving: dict[Partition, OwnedPartition] = {}
        self._recording: asyncio.Task[None] | None = None
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

    async def note(self, partition: Partition, note: HandlingNote | None) -> bool:
        if (row := self.held_row(partition)) is not None:
            row.note = note
        return not await self.record({partition: None})

    async def record(self, offsets: Mapping[Partition, str] | Mapping[Partition, None]) -> frozenset[Partition]:
        # Tried again for ``patience`` while the service does not answer, even if nobody waits for it any more.
        if self._closed:
            raise SessionLost("the session has ended")
        rows = [row for partition in offsets if (row := self.held_row(partition)) is not None]
        lost = frozenset(offsets) - {row.partition for row in rows}
        if not rows:
            return lost
        commit = PendingCommit(len(rows), asyncio.get_running_loop().time() + self._options.patience)
        for row in rows:
            row.pending_offset = offsets[row.partition] or row.pending_offset  # in the place of what was wanted before
            row.waiting_commits.append(commit)
            self._due[row.partition] = row
        if self._recording is None:
            self._recording = self._start(self._record_all())
        return lost | await asyncio.shield(commit.end)

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
        for row in self._rows.values():
            row.state = "lost"
            row.fail(SessionLost("the session ended meanwhile"))
        self._owner.stop([row for row in self._rows.values() if row.notified])

    async def abandon(self) -> None:
        """Ends everything, calls the owner's ``lost`` for all that it has, and waits for it, but not for ever."""
        self.close()
        # A commit that is under way is not cancelled: that would not undo it at the service.
        await cancel(*(task for task in self._endings if task is not self._recording))
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
        task = start(work, self._endings)
        task.add_done_callback(self._events.ended)
        return task

    async def _record_all(self) -> None:
        """Records what is wanted, all that has come together in one call, until nothing is."""
        failures = 0
        while self._due and not self._closed:
            rows = list(self._due.values())
            try:
                await self._record(rows)
                failures = 0
            except SessionLost:
                raise
            except Exception as error:  # noqa: BLE001 - the caller of the commit gets it
                failures += 1
                await self._events.sleep(self._put_off(rows, error, failures))
            self._let_leave()
        self._recording = None

    async def _record(self, rows: list[OwnedPartition]) -> None:
        """Records what is wanted of some rows once."""
        if doubtful := [row for row in rows if not row.version_known]:
            again = await self._session.claim([row.partition for row in doubtful])
            for row in doubtful:
                self._note(row, again.get(row.partition))
        sent = [
            (row, row.pending_offset, row.note, len(row.waiting_commits), row.request())
            for row in rows
            if row.version_known and row.partition in self._due
        ]
        if not sent:
            return
        try:
            results = await self._session.commit([request for *_, request in sent])
        except BaseException:
            for row, *_ in sent:
                row.version_known = False
            raise
        for row, offset, note, waiting, _ in sent:
            self._note(row, results.get(row.partition))
            if not row.version_known:
                continue
            if row.pending_offset == offset and row.note == note:
                del self._due[row.partition]
                row.answer(recorded=True)
            else:
                row.answer(waiting, recorded=True)

    def _note(self, row: OwnedPartition, held: OwnedOffset | None) -> None:
        """Stores what is held of a row now; None: another owner, or our version is stale."""
        row.version_known = held is not None
        if held is not None:
            row.held = held
        elif not self._closed:
            log.warning("this member no longer owns %s", row.partition)
            self._drop(row)
            owned = row.state == "owned"
            self._let_go(row)
            if owned:
                self._owner.stop([row])
                self._start(self._notify_lost(row))

    def _put_off(self, rows: Iterable[OwnedPartition], error: Exception, failures: int) -> float:
        """Returns after how long a failed commit is tried again; calls for which that is too late get the error."""
        if isinstance(error, CoordinationRefused):
            self._owner.refused(error)
        pause = self._options.pause(failures)
        now = asyncio.get_running_loop().time()
        for row in rows:
            if isinstance(error, CoordinationLost) and row.commits:
                row.fail(error, due=now + pause)
            elif row.partition in self._due:
                row.fail(error)
                self._drop(row)
        return pause if self._due else 0.0

    def _drop(self, row: OwnedPartition) -> None:
        self._due.pop(row.partition, None)
        row.answer(recorded=False)

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
        if not row.released:
            self._leaving[row.partition] = row
            self._let_leave()

    def _let_leave(self) -> None:
        if self._releasing is None and self._leaving.keys() - self._due.keys():
            self._releasing = self._start(self._release_all())

    async def _release_all(self) -> None:
        """Releases what is to be, all that has come together in one call, until nothing is."""
        # Tasks that are ready to run can add their own first.
        await asyncio.sleep(0)
        failures = 0
        while rows := [row for partition, row in self._leaving.items() if partition not in self._due]:
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
