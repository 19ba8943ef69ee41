"""The store of one process: the parts that groups need, by the pure functions of the real stores."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Sequence
from functools import partial
from typing import Any, TypeVar

from msgspec.structs import replace

from queuey.model import ids
from queuey.model.errors import GroupNotFound, QueueChanged, QueueNotFound, StoreUnavailable
from queuey.model.groups import (
    ClockSample,
    GroupChange,
    GroupHead,
    GroupSessions,
    MemberCommit,
    OwnedOffset,
    OwnedOffsets,
    SeenMember,
    StoredGroup,
)
from queuey.model.messages import Offset, OffsetChange, Queue
from queuey.storage import Store
from queuey.storage.offset_changes import check_changes, decide, find_disowned, keep_notes
from tests.sim.groups.served.processes import Machine
from tests.sim.groups.served.stored import APPLICATION, Contents, OffsetsChange, Proposal, Register, Rows, Stored
from tests.sim.replicas import make_async_store

T = TypeVar("T")
TIMEOUT = 0.5
"""Seconds to wait for the answer to a transaction."""
PATIENCE = 2.0
"""Seconds after which a transaction is not repeated."""
ROW_AGE = 2.0
"""Seconds for which a queue's row may be used from the cache."""
WRITE_DEADLINE = 1.0
"""Seconds until a plain write fails that has not reached a quorum."""


class GroupStore:
    """A store as one process sees it. Calls take time, in which the process may stop or crash.

    Args:
        stored: The stored state.
        process: The process.
    """

    centre = ""

    def __init__(self, stored: Stored, process: Machine) -> None:
        self.stored = stored
        self._process = process
        self._world = stored.world
        self._cached: dict[str, tuple[Queue, float]] = {}
        self.clock_difference = stored.slack

    @property
    def store(self) -> Store:
        return make_async_store(self)

    def adopt(self, _loop: object) -> None:
        pass

    def claims_refusal(self, queue: Queue) -> str | None:
        return None

    def groups_refusal(self) -> str | None:
        return None

    # Time

    def now_ticks(self) -> int:
        """Returns the time for a claim. Raises StoreUnavailable if the clock is known to be wrong."""
        if not self.stored.linear and abs(self._process.known) > self.stored.slack / 2:
            raise StoreUnavailable("the clock is wrong")
        return ids.seconds_to_ticks(self._process.clock())

    def now_ms(self) -> int:
        return (self.now_ticks() - ids.EPOCH_TICKS) // 10_000

    def sample_clock(self) -> ClockSample:
        return ClockSample(self.now_ms(), self._world.now)

    async def confirm_clock(self, sample: ClockSample) -> None:
        """Raises StoreUnavailable if the clock stays behind the store's, or was set since the sample was taken."""
        if self.stored.linear:
            return
        until = self._world.now + PATIENCE
        while self._world.now < until:
            sent = self._process.clock()
            if sent - await self.call(lambda: self._world.now) >= -self.stored.slack / 2:
                if self._process.was_set > sample.since_boot:
                    break
                return
        raise StoreUnavailable("the clock was behind")

    # Calls

    async def call(self, effect: Callable[[], T]) -> T:
        """Carries out an effect at the store, at an instant between question and answer.

        By chance the process stops before that, or the call fails without effect.
        """
        stored, world, process = self.stored, self._world, self._process
        rng, faults = world.rng, stored.faults
        if faults.hesitant and rng.random() < faults.hesitant:
            (process.pause if stored.linear or rng.random() < 0.5 else process.stand)(rng.choice((0.5, 2.0, 6.0)))
            await asyncio.sleep(0.0)
        if stored.linear:
            await asyncio.sleep(world.random_time(faults.slow))
        if faults.failing and rng.random() < faults.failing:
            raise StoreUnavailable("no answer", outcome="none")
        if stored.linear:
            return effect()
        life, answered = process.life, asyncio.get_running_loop().create_future()

        def arrive() -> None:
            process.soon(world.random_time(faults.slow), partial(_answer, answered, effect()), life)

        world.after(world.random_time(faults.slow), arrive)
        value: T = await answered
        return value

    async def _transact(
        self, register: Register, version: int, change: Callable[[Any], Any], after: Callable[[Any, Any], None]
    ) -> int | None:
        """Changes a register. Returns its new version, or None if refused.

        Repeats the transaction while it gets no answer.

        Raises:
            StoreUnavailable: The outcome is unknown.
        """
        token, until, doubted = next(self.stored.tokens), self._world.now + PATIENCE, False
        proposal = Proposal(version, token, change, after)
        while True:  # bounded: by PATIENCE
            applied = await self.call(lambda: register.propose(proposal))
            if applied:
                return token
            if applied is not None and doubted:
                raise StoreUnavailable("others were faster", outcome="unknown")
            if applied is not None:
                return None
            doubted = True
            await asyncio.sleep(TIMEOUT)
            if self._world.now > until:
                raise StoreUnavailable("no answer", outcome="unknown")

    async def _read(self, what: str, read: Callable[[], T], size: Callable[[T], int] = lambda _: 0) -> T:
        value = await self.call(read)
        self._count(f"reads of {what}", size, value)
        return value

    def _count(self, kind: str, size: Callable[[Any], int], value: object) -> None:
        if self.stored.counting:
            counts = self.stored.counts
            counts[kind] += 1
            counts[f"bytes of {kind}"] += size(value)

    # The state of the group

    async def group_head(self, application: str, name: str, *, serial: bool = False) -> GroupHead | None:
        found = await self._read("heads", lambda: self.stored.group.read(serial=serial), lambda _: 60)
        return _head_of(*found)

    async def group_state(self, application: str, name: str) -> StoredGroup | None:
        version, contents = await self._read("states", self.stored.group.read, lambda found: _size(found[1]))
        head = _head_of(version, contents)
        return None if head is None else StoredGroup(head, tuple(contents.rows.values()))

    async def change_group(self, application: str, name: str, version: int, change: GroupChange) -> GroupHead | None:
        """Replaces the head and some rows. Returns the new head, or None if the version has changed."""
        stored = self.stored

        def changed(before: Contents | None) -> Contents:
            rows = {} if before is None else dict(before.rows)
            rows.update({(row.kind, row.key): row for row in change.rows})
            return Contents(change.head, rows)

        stored.names.add(name)
        if stored.counting:
            self._count("changes", lambda rows: 100 + sum(len(row.body) for row in rows), change.rows)
            for row in change.rows:
                kind = f"row of kind {row.kind}"
                stored.largest[kind] = max(stored.largest[kind], len(row.body))
        token = await self._transact(stored.group, version, changed, self._tell_group_change)
        return None if token is None else replace(change.head, version=token)

    async def remove_group(self, application: str, name: str, version: int) -> bool:
        self._count("changes", lambda _: 100, None)
        return await self._transact(self.stored.group, version, lambda _: None, self._tell_group_change) is not None

    def _tell_group_change(self, before: Contents | None, after: Contents | None) -> None:
        if self.stored.observer is not None:
            self.stored.observer.group_changed(before, after)

    async def group_names(
        self, application: str, *, start: str = "", limit: int = 100, creator: bytes | None = None
    ) -> list[str]:
        return await self._read("names", lambda: sorted(name for name in self.stored.names if name >= start)[:limit])

    # Sessions

    async def renew_session(self, application: str, name: str, member: int, session: int) -> int:
        """Stamps a member's session and returns the stamp, once a quorum has it.

        Raises StoreUnavailable if that takes longer than WRITE_DEADLINE.
        """
        seen, stored, world = self.now_ms(), self.stored, self._world
        self._count("writes", lambda _: 60, None)
        stored_at = await self.call(lambda: stored.stamp(member, seen))
        if not stored.linear and stored_at > world.now:
            await asyncio.sleep(min(stored_at - world.now, WRITE_DEADLINE) + world.random_time(stored.faults.slow))
            if stored_at > world.now:
                raise StoreUnavailable("no answer", outcome="unknown")
        return seen

    async def group_sessions(self, application: str, name: str) -> GroupSessions:
        """Returns when members were last seen, with the requests to them. The process may pause before the answer."""
        clock, stored = self.now_ms(), self.stored

        def read() -> GroupSessions:
            now, last = self._world.now, stored.last_seen()
            asked = {
                member: frozenset(uid for uid, end in stored.asked[member].items() if end > now)
                for member in stored.asked.keys() & last.keys()
            }
            members = {member: SeenMember(seen, asked.get(member, frozenset())) for member, seen in last.items()}
            return GroupSessions(clock, stored.searched, members)

        sessions = await self._read("sessions", read, lambda sessions: 45 * len(sessions.members))
        if stored.faults.reading and self._world.rng.random() < stored.faults.reading:
            self._process.pause(self._world.rng.choice((2.0, 4.0)))
            await asyncio.sleep(0.0)
        return sessions

    async def ask_member(self, application: str, name: str, member: int, uid: int, session: int) -> None:
        self._count("writes", lambda _: 60, None)
        end = self._world.now + session / 1000
        await self.call(lambda: self.stored.asked.setdefault(member, {}).update({uid: end}))

    async def record_search(self, application: str, name: str, when: int) -> None:
        self._count("writes", lambda _: 60, None)

        def note() -> None:
            self.stored.searched = max(self.stored.searched, when)

        await self.call(note)

    # Owners and offsets

    async def owned_offsets(self, queue: Queue, group: str, notes: Container[int] = ()) -> OwnedOffsets:
        return keep_notes(await self._read_recorded(queue), notes)

    async def hand_over(self, queue: Queue, group: str, version: int | None, owners: Sequence[OwnedOffset]) -> bool:
        """Sets the owners of partitions, keeping their offsets. Returns False if the version has changed."""
        new = {one.partition: one for one in owners}

        def changed(rows: Rows) -> Rows:
            blank = {part: rows.get(part) or OwnedOffset(part) for part in new}
            return rows | {
                part: replace(blank[part], owner=one.owner, epoch=one.epoch, came=one.came) for part, one in new.items()
            }

        self._count("hand-overs", lambda _: 60 * len(new), None)
        self._require(queue, current=True)
        done = await self._transact(
            self.stored.rows(queue.uid), version or 0, changed, self._observer_call(queue, OffsetsChange("hand-over"))
        )
        return done is not None

    def _require(self, queue: Queue, *, current: bool = False) -> None:
        """Raises an error unless the queue exists as the same one; with ``current``, also unless it was not purged."""
        present = self.stored.queues.get(queue.name)
        if present is None or present.uid != queue.uid or (current and present.version != queue.version):
            raise QueueChanged(queue.name)

    def _observer_call(self, queue: Queue, deed: OffsetsChange) -> Callable[[Rows, Rows], None]:
        def after(before: Rows, rows: Rows) -> None:
            if self.stored.observer is not None:
                self.stored.observer.offsets_changed(queue.uid, before, rows, deed)

        return after

    async def set_offsets(
        self,
        queue: Queue,
        group: str,
        changes: Sequence[OffsetChange],
        *,
        commit: MemberCommit | None = None,
        disown: int | None = None,
        is_admin: bool = True,
    ) -> list[Offset]:
        check_changes(queue, changes)
        back = frozenset(change.partition for change in changes if change.compare)
        deed = OffsetsChange("plain")
        if commit is not None:
            deed = OffsetsChange("commit", commit.member, commit.epochs, back)
        while True:
            recorded = await self._read_offsets(queue)
            lost = find_disowned(recorded, disown) if commit is None else set()
            decision = decide(recorded.rows, changes, self._process.clock(), commit, lost)
            if not decision.written or await self._write_offsets(
                queue, recorded.version, decision.changed_rows(), deed
            ):
                return decision.result(changes)

    async def _write_offsets(
        self, queue: Queue, version: int | None, rows: Sequence[OwnedOffset], deed: OffsetsChange
    ) -> bool:
        written = {row.partition: row for row in rows}
        self._count("commits", lambda _: 60 * len(written), None)
        register = self.stored.rows(queue.uid)
        after = self._observer_call(queue, deed)
        return await self._transact(register, version or 0, lambda before: {**before, **written}, after) is not None

    async def _read_offsets(self, queue: Queue) -> OwnedOffsets:
        self._require(queue, current=True)
        return await self._read_recorded(queue)

    async def _read_recorded(self, queue: Queue) -> OwnedOffsets:
        register = self.stored.rows(queue.uid)
        version, rows = await self._read("offsets", register.read, lambda offsets: 60 * len(offsets[1]))
        deleted_epoch = rows[0].epoch if 0 in rows else 0
        return OwnedOffsets(version or None, {part: row for part, row in rows.items() if part}, deleted_epoch)

    async def delete_group(self, queue: Queue, group: str, *, disown: int | None = None) -> None:
        while True:
            recorded = await self._read_offsets(queue)
            if not recorded.rows:
                raise GroupNotFound(group)
            find_disowned(recorded, disown)
            if await self._transact(
                self.stored.rows(queue.uid),
                recorded.version or 0,
                partial(self._delete_rows, recorded),
                self._observer_call(queue, OffsetsChange("forget")),
            ):
                return

    def _delete_rows(self, recorded: OwnedOffsets, _before: Rows) -> Rows:
        """Returns what a deletion leaves: the highest epoch, in a row of partition 0."""
        return {0: OwnedOffset(0, epoch=recorded.highest_epoch())}

    # Queues

    async def queue(self, application: str, name: str, *, fresh: bool = False) -> Queue:
        cached = self._cached.get(name)
        if not fresh and cached is not None and cached[1] > self._world.now - ROW_AGE:
            return cached[0]
        row = await self._read("queues", lambda: self.stored.queues.get(name), lambda _: 300)
        if row is None:
            self._cached.pop(name, None)
            raise QueueNotFound(name)
        self._cached[name] = (row, self._world.now)
        return row

    def cached_queue(self, application: str, name: str) -> Queue | None:
        cached = self._cached.get(name)
        return cached[0] if cached is not None and cached[1] > self._world.now - ROW_AGE else None

    async def list_queues(self, application: str, *, start: str = "", limit: int = 1000) -> list[Queue]:
        """Lists queues. A slow replica may miss some."""
        stored, rng = self.stored, self._world.rng

        def read() -> list[Queue]:
            lacking = 0.0 if stored.linear else stored.faults.lacking
            found = [one for name, one in sorted(stored.queues.items()) if name >= start]
            return [one for one in found if not lacking or rng.random() >= lacking][:limit]

        return await self._read("lists", read, lambda found: 300 * len(found))

    async def has_application(self, name: str) -> bool:
        return name == APPLICATION


def _head_of(version: int, contents: Contents | None) -> GroupHead | None:
    return None if contents is None else replace(contents.head, version=version)


def _size(contents: Contents | None) -> int:
    return 0 if contents is None else 100 + sum(len(row.body) for row in contents.rows.values())


def _answer(answered: asyncio.Future[Any], value: object) -> None:
    if not answered.done():
        answered.set_result(value)
