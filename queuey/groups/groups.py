"""Consumer groups whose partitions the service assigns; ``docs/architecture-groups.md`` has the rules."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from weakref import WeakValueDictionary

from msgspec.structs import replace

from queuey.access.queue_access import QueueAccess
from queuey.api.groups import GroupInfo, GroupNames, Heartbeat, HeartbeatAnswer, Joined
from queuey.api.progress import RecordedOffset, RecordedOffsets
from queuey.groups import shown_groups
from queuey.groups.local_group import LocalGroup, hash_secret
from queuey.groups.offsets import require_group_name
from queuey.groups.queue_searches import find_queues, list_planned, read_queues
from queuey.groups.rules.group_state import MAX_PARTITIONS, GroupState, JoinedMember, JoinRequest
from queuey.groups.rules.state_draft import GroupDraft
from queuey.groups.state_cache import GroupContext, ReadRights, keep_rights
from queuey.groups.state_changes import MAX_ATTEMPTS, clock_slack, make_draft
from queuey.model import ids
from queuey.model.errors import (
    Conflict,
    GroupActive,
    GroupNotFound,
    InvalidRequest,
    MemberGone,
    StoreBusy,
    StoreUnavailable,
    TooManyGroups,
)
from queuey.model.groups import GroupChange, MemberCommit
from queuey.model.messages import OffsetChange, Queue
from queuey.model.partitions import check_partitions
from queuey.model.rights import SHARES_TEXT, MemberCredential, has_room
from queuey.runtime.event_loop import Core
from queuey.runtime.waiters import Waiter
from queuey.runtime.workers import Answer, Topic, Workers
from queuey.storage import Store

MAX_GROUPS = 1000
"""Max groups of an application; a few more if several are created at the same moment."""
MAX_EXAMINED = 32
"""Max groups that are examined to find abandoned ones, when there is no room for another group."""
MAX_GIVEN_BACK = 1000
"""Max partitions that a heartbeat may give back."""
SWEEP_INTERVAL = 1.0
"""Min seconds between two searches for groups that can be dropped from memory."""
GROUP_CHANGED_TOPIC = Topic(21, tuple[str, str], bool)
"""Tells other workers of the service the application and name of a group that this worker has changed."""


class GroupUseCases:
    """Joins, heartbeats, commits and views of groups.

    Args:
        store: The storage; its owner closes it.
        core: Event loop and clock.
        rights: Returns a credential with its current rights. By default they never change.
        workers: The other workers of the service: if one changes a group, members at the others are woken. By
            default no others; polls find the changes of other processes.

    Attributes:
        served: Groups that this process serves, by application and name.
    """

    def __init__(
        self, store: Store, core: Core, rights: ReadRights = keep_rights, workers: Workers | None = None
    ) -> None:
        self._store = store
        self._core = core
        self.served: dict[tuple[str, str], LocalGroup] = {}
        self._counts: Counter[str] = Counter()
        self._searching: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._swept = 0.0
        self._rights = rights
        self._workers = Workers() if workers is None else workers
        self._workers.handle(GROUP_CHANGED_TOPIC, self._receive_report)

    def _announce(self, key: tuple[str, str]) -> None:
        for number in range(1, self._workers.identity.total + 1):
            if number != self._workers.identity.number:
                self._workers.ask(number, GROUP_CHANGED_TOPIC, key, lambda _answer: None)

    def _receive_report(self, key: tuple[str, str], answer: Answer[bool]) -> None:
        self._core.calls(self._work_now, key)
        answer(True)  # noqa: FBT003 - received

    def _work_now(self, key: tuple[str, str]) -> None:
        if (served := self.served.get(key)) is not None:
            served.work_now()

    def _get_local(self, application: str, group: str) -> LocalGroup:
        require_group_name(group)
        served = self.served.get((application, group))
        now = self._core.boottime()
        if now - self._swept >= SWEEP_INTERVAL:
            self._swept = now
            self.served = {key: local for key, local in self.served.items() if local is served or local.is_needed}
        if served is None:
            key, searching = (application, group), self._searching.setdefault(application, asyncio.Lock())
            announce, forget = partial(self._announce, key), partial(self._forget, key)
            context = GroupContext(
                self._store, self._core, key, self._rights, searching, self._counts, announce, forget
            )
            served = self.served[key] = LocalGroup(context)
        served.used = now
        return served

    def _forget(self, key: tuple[str, str]) -> None:
        """Drops a group that does not exist: callers choose the names."""
        self.served.pop(key, None)

    async def _read(self, application: str, group: str) -> tuple[LocalGroup, GroupState]:
        local = self._get_local(application, group)
        state = await local.cache.refresh()
        if not state.head.version:
            self._forget((application, group))
        return local, state

    async def join(self, application: str, group: str, request: JoinRequest) -> Joined:
        """Adds a member to a group, which is created if needed.

        The returned ``member`` is its secret id. A change that is repeated because the first try was in doubt finds the
        same member.

        Raises:
            InvalidRequest, TooManyGroups, TooManyMembers, GroupElsewhere, StoreUnavailable.
            Conflict: The store does not support groups as it is configured.
        """
        is_admin = request.credential.caller.administers(application)
        clock = self._store.groups.sample_clock()
        local = self._get_local(application, group)
        secret = f"{self._core.rng.getrandbits(128):032x}"
        digest = hash_secret(secret)

        def join(draft: GroupDraft) -> JoinedMember:
            state = draft.state
            # The member exists if a transaction in doubt was applied.
            return next((other for other in state.members.values() if other.digest == digest), None) or draft.join(
                request, digest, is_admin=is_admin
            )

        try:
            if (refusal := self._store.groups.groups_refusal()) is not None:
                raise Conflict(refusal)
            if not (await local.cache.refresh()).head.version:
                await self._make_room(application, request.credential.id, is_admin=is_admin)
            member = await local.changes.apply(join)
        finally:
            if not local.cache.state.head.version:
                self._forget((application, group))
        await self._store.groups.confirm_clock(clock)
        session = max(0, member.joined + member.session - clock.now) / 1000
        return Joined(f"{member.number}-{secret}", member.number, session, member.session / 3000)

    async def _make_room(self, application: str, creator: bytes, *, is_admin: bool) -> None:
        """Checks that a credential may create another group. If not, removes some that are abandoned first.

        Raises:
            TooManyGroups: No room was found.
        """
        for _ in range(2):
            candidates = names = await self._store.groups.group_names(application, limit=MAX_GROUPS)
            own = (
                [] if is_admin else await self._store.groups.group_names(application, limit=MAX_GROUPS, creator=creator)
            )
            if has_room(MAX_GROUPS, len(names), len(own), is_admin=is_admin):
                return
            if has_room(MAX_GROUPS, len(names), is_admin=is_admin):
                candidates = own
            for name in self._core.rng.sample(candidates, min(MAX_EXAMINED, len(candidates))):
                local = self._get_local(application, name)
                draft = await self._end_sessions(local, await local.cache.refresh())
                if local.cache.is_here and draft.is_abandoned():
                    await self._store.groups.remove_group(application, name, draft.state.head.version)
        raise TooManyGroups(f"An application has at most {MAX_GROUPS:,} groups. {SHARES_TEXT}")

    async def heartbeat(
        self,
        application: str,
        group: str,
        member_id: str,
        credential: MemberCredential,
        heartbeat: Heartbeat,
        waiter: Waiter | None = None,
        *,
        must_answer: bool = False,
    ) -> HeartbeatAnswer | None:
        """Renews a session; returns what the member has to do.

        Returns None if there is nothing to do; ``waiter`` is then woken when that may have changed. Without a waiter,
        or with ``must_answer``, the answer is never None. All calls for one request pass the same waiter.

        Raises:
            MemberGone, GroupElsewhere, StoreUnavailable.
            InvalidRequest: The heartbeat names too many partitions.
        """
        limits = ("owned", heartbeat.owned, MAX_PARTITIONS), ("given_back", heartbeat.given_back, MAX_GIVEN_BACK)
        for field, partitions, limit in limits:
            if max(len(partitions), sum(map(len, partitions.values()))) > limit:
                raise InvalidRequest({field: f"Names more than {limit} partitions"})
        return await self._get_local(application, group).heartbeat(
            member_id, credential, heartbeat, waiter, must_answer=must_answer
        )

    async def leave(
        self,
        application: str,
        group: str,
        member_id: str,
        credential: MemberCredential,
        *,
        returns: bool,
        is_own_request: bool = True,
    ) -> None:
        """Removes a member from its group; with ``returns``, an instance may come back within its grace period.

        ``is_own_request``: the member itself leaves, so its partitions count as given back, otherwise as lost.

        Raises:
            MemberGone, GroupElsewhere, StoreUnavailable.
        """
        await self._get_local(application, group).leave(
            member_id, credential, returns=returns, is_own_request=is_own_request
        )

    async def commit(
        self,
        access: QueueAccess,
        group: str,
        member_id: str,
        credential: MemberCredential,
        changes: Sequence[OffsetChange],
        epochs: Mapping[int, int],
        notes: Mapping[int, bytes | None],
    ) -> RecordedOffsets:
        """Records offsets of partitions that the member owns.

        Raises:
            NotOwner: The member does not own some partitions. These are unchanged, all others are recorded.
            MemberGone, OffsetConflict, InvalidRequest, StoreUnavailable.
        """
        local = self._get_local(access.queue.application, group)
        joined = await local.find_member(member_id, credential)
        await local.require_session(joined)
        fence = MemberCommit(joined.number, dict(epochs), dict(notes))

        async def record(queue: Queue) -> dict[int, RecordedOffset]:
            check_partitions((change.partition for change in changes), queue.partitions)
            recorded = await self._store.offsets.set_offsets(queue, group, changes, commit=fence)
            return {offset.partition: RecordedOffset(ids.to_hex(offset.position)) for offset in recorded}

        return RecordedOffsets(group=group, partitions=await access.apply(record) if changes else {})

    async def require_inactive(self, application: str, group: str) -> tuple[LocalGroup, GroupState]:
        """Returns a group of this process, and its state by a read that starts now, if no member has a live session.

        Raises:
            GroupActive: The group has such members.
            GroupElsewhere: The group has members, and another data centre serves it.
        """
        local, state = await self._read(application, group)
        if state.members:
            local.cache.require_here()
            present = (await self._end_sessions(local, state)).state
            if any(member.state != "absent" for member in present.members.values()):
                raise GroupActive(group)
        return local, state

    async def _end_sessions(self, local: LocalGroup, state: GroupState) -> GroupDraft:
        """Returns a draft without the sessions that are over: no process ends that of the last member of a group.

        Instances within their grace period become absent; other members are gone.

        Raises:
            StoreUnavailable: The clock is not sound.
        """
        draft = make_draft(state, await local.changes.read_sessions(), clock_slack(self._store))
        draft.end_sessions()
        return draft

    async def show(
        self,
        application: str,
        group: str,
        visible: Callable[[Queue], bool],
        viewer: MemberCredential | None = None,
        *,
        start: str = "",
        lag: bool = False,
        few: bool = False,
    ) -> GroupInfo:
        """Returns a page of a group: 100 queues, or 16 with ``lag``.

        With ``few``, only the first 16 queues of the last plan count, and none are searched, so the cost does not
        depend on the number of queues. If the clock is sound, members whose sessions are over count as absent or gone.

        What is not ``visible`` changes nothing in the answer. A viewer who may measure all queues sees all members;
        another one, and None, those with partitions of visible queues and those with its own credential.

        Raises:
            GroupNotFound: The group does not exist.
        """
        local, state = await self._read(application, group)
        if not state.head.version:
            raise _not_found(group)
        if state.members:
            with suppress(StoreUnavailable):
                state = (await self._end_sessions(local, state)).state
        seen = local.changes.sessions.members

        patterns = () if viewer is None else viewer.caller.find_patterns(application, "measure")
        if few:
            names = await self._core.in_thread(partial(list_planned, state, patterns))
            queues = await read_queues(self._store, application, names[: shown_groups.LAG_PAGE_SIZE])
        else:
            queues = await find_queues(self._core, self._store, application, state, fresh=False)
        shown: list[Queue] = []
        await self._core.for_each(queues, lambda queue: shown.append(queue) if visible(queue) else None)
        info = await shown_groups.make_group_info(self._store, group, state, shown, start, lag=lag, seen=seen)
        if "*" not in patterns:
            hide_members = partial(shown_groups.hide_members, info, state, shown, viewer)
            info = await self._core.in_thread(hide_members)
        return info

    async def list_names(self, application: str, *, start: str = "", limit: int = 100) -> GroupNames:
        names = await self._store.groups.group_names(application, start=start, limit=limit + 1)
        return GroupNames(tuple(names[:limit]), names[limit] if len(names) > limit else None)

    async def remove_member(self, application: str, group: str, number: int) -> None:
        """Removes a member, whatever its state: it has lost its partitions, and learns that by its next answer.

        Raises:
            MemberGone: The group does not have the member.
        """
        local, state = await self._read(application, group)
        if number not in state.members:
            raise MemberGone
        await local.changes.apply(partial(GroupDraft.leave, number=number))

    async def forget(self, application: str, group: str, *, force: bool = False) -> None:
        """Deletes a group's state; its offsets stay. Waits until the clock has passed the group's epoch.

        With ``force``, also deletes a group with live members, as if each was removed.

        Raises:
            GroupActive: The group has live members.
            GroupNotFound: The group does not exist.
            StoreBusy: Other processes keep changing the group.
        """
        for _ in range(MAX_ATTEMPTS):
            local, state = await (self._read if force else self.require_inactive)(application, group)
            if not state.head.version:
                raise _not_found(group)
            # If the group is created again, its epochs must be above those of this one.
            ahead = state.head.epoch - clock_slack(self._store) - self._store.clock.now_ms()
            if ahead >= 0:
                await asyncio.sleep((ahead + 1) / 1000)
                continue
            if await self._store.groups.remove_group(application, group, state.head.version):
                local.cache.invalidate()
                self._announce((application, group))
                return
        raise StoreBusy(f"Group {group!r} is being changed by others. Try again.")

    async def move(self, application: str, group: str, centre: str) -> None:
        """Moves a group to this process's data centre, ``centre``, after its former one was lost, unless it is there.

        Raises:
            GroupNotFound: The group does not exist.
            InvalidRequest: ``centre`` is not the data centre of this process.
            StoreBusy: Other processes keep changing the group.
        """
        if centre != self._store.groups.centre:
            own_centre = f"is {self._store.groups.centre!r}" if self._store.groups.centre else "has no name"
            raise InvalidRequest({"centre": f"{centre!r} is not the data centre of this process, which {own_centre}"})
        for _ in range(MAX_ATTEMPTS):
            head = await self._store.groups.group_head(application, group, serial=True)
            if head is None:
                raise _not_found(group)
            moved = replace(head, centre=centre, moved=self._store.clock.now_ms())
            if head.centre == centre:
                return
            if (
                await self._store.groups.change_group(application, group, head.version, GroupChange(moved, ()))
                is not None
            ):
                return
        raise StoreBusy(f"Group {group!r} is being changed by others. Try again.")

    def statistics(self) -> dict[str, float]:
        active = [local for local in list(self.served.values()) if local.members]
        counts = self._counts
        return {
            "groups_served": len(active),
            "groups_members": sum(local.members for local in active),
            "groups_unassigned": sum(local.changes.unassigned for local in active),
            "groups_plans_total": counts["plans"],
            "groups_sessions_over_total": counts["sessions_over"],
            **{f"groups_moved_{how.replace(' ', '_')}_total": counts[how] for how in ("new", "given back", "lost")},
        }

    async def end(self) -> None:
        await asyncio.gather(*(local.cancel_tasks() for local in list(self.served.values())))


def _not_found(group: str) -> GroupNotFound:
    return GroupNotFound(group, f"Group {group!r} does not exist. List those that do: queuey group list")
