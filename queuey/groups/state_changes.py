"""Changes of a group's state. Waiting changes share a transaction."""

from __future__ import annotations

import asyncio
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import product
from typing import Any, TypeVar

from msgspec.structs import replace

from queuey.groups.heartbeat_answers import Targets
from queuey.groups.queue_searches import find_queues
from queuey.groups.rules.group_state import GroupState, JoinedMember
from queuey.groups.rules.planning import SubscribedQueues, Views, make_plan
from queuey.groups.rules.state_draft import GroupDraft
from queuey.groups.state_cache import GroupContext, StateCache
from queuey.model.errors import QueueyError, StoreBusy, StoreClosed, StoreUnavailable
from queuey.model.groups import GroupChange, GroupSessions
from queuey.model.messages import Queue
from queuey.model.rights import MemberCredential
from queuey.storage import Store

MAX_ATTEMPTS = 20
MAX_STATE_AGE = 2.0
"""Max age in seconds of the state by which requests are answered. It is refreshed before a refusal."""

T = TypeVar("T")
Act = Callable[[GroupDraft], Any]


class StateChanges:
    """Changes the state of a group, and reads the sessions of its members. Used in the loop's thread.

    Args:
        context: The group.
        cache: The group's state.

    Attributes:
        sessions, sessions_read: The sessions as last read, and the boot time of that read.
        task: Applies the waiting changes.
        unassigned: Partitions without a target in the last plan that this process made.
    """

    def __init__(self, context: GroupContext, cache: StateCache) -> None:
        self._store, self._core, self._key = context.store, context.core, context.key
        self._rights, self._searching, self._counts = context.rights, context.searching, context.counts
        self._cache = cache
        self._acts: list[tuple[Act, asyncio.Future[Any]]] = []
        self.sessions, self.sessions_read = GroupSessions(0, 0, {}), -math.inf
        self.task: asyncio.Task[None] | None = None
        self._searched = GroupState(), 0
        """State and digest of the queues of the last search: the same ones need no other plan."""
        self.unassigned = 0

    def apply(self, act: Callable[[GroupDraft], T]) -> asyncio.Future[T]:
        """Changes the state, in one transaction with other waiting changes; returns a future of ``act``'s result.

        Args:
            act: Called again if another process was faster or a transaction is in doubt.

        Raises:
            QueueyError: From the future: an error of ``act`` on the current state, or of the store.
        """
        done: asyncio.Future[T] = self._core.loop.create_future()
        done.add_done_callback(lambda done: done.cancelled() or done.exception())  # Callers need not await it.
        self._acts.append((act, done))
        if self.task is None or self.task.done():
            self.task = self._core.spawn(self._apply_waiting())
        return done

    def apply_due(self) -> asyncio.Future[None]:
        return self.apply(lambda _draft: None)

    def request_plan(self) -> None:
        if self._cache.state.head.due is None:
            self.apply(GroupDraft.request_plan)

    async def _apply_waiting(self) -> None:
        while self._acts:
            acts, self._acts = self._acts, []
            try:
                results = await self._transact([act for act, _ in acts])
            except asyncio.CancelledError:
                acts += self._acts
                _settle_futures(acts, [StoreClosed("The service is ending.")] * len(acts))
                raise
            except Exception as error:  # noqa: BLE001 - passed on to the waiting callers
                results = [error] * len(acts)
            _settle_futures(acts, results)

    async def _transact(self, acts: list[Act]) -> list[Any]:
        """Applies acts in one transaction; returns the result or the error of each.

        The transaction also ends sessions that are over, and makes a plan if one is due. An act's error counts only on
        the current state.

        Raises:
            StoreBusy: ``MAX_ATTEMPTS`` transactions met concurrent changes.
            StoreUnavailable: The store failed; ``unknown`` if an attempt is in doubt.
        """
        is_in_doubt = False
        for _ in range(MAX_ATTEMPTS):
            began = self._core.boottime()
            sessions = await self.read_sessions()
            state = await self._cache.refresh(MAX_STATE_AGE)
            if not self._cache.is_here:
                state = await self._cache.refresh()
                self._cache.require_here()
            draft = make_draft(state, sessions, clock_slack(self._store))
            ended, results = await self._core.compute(len(acts) + len(state.plan), partial(_apply_acts, acts, draft))
            if any(isinstance(result, QueueyError) for result in results) and await self._cache.refresh() is not state:
                continue
            is_planned = draft.is_plan_due()
            if is_planned:
                async with self._searching:
                    queues = await find_queues(self._core, self._store, self._key[0], draft.state)
                    views = await self._make_views(draft.state, queues)
                    changed = await self._find_changed_rights(draft.state)
                    await self._core.in_thread(partial(draft.plan, queues, views, changed))
            change, targets = await self._core.in_thread(partial(_finish, draft, state))
            if change is None:
                return results
            try:
                head = await self._store.groups.change_group(*self._key, state.head.version, change)
            except StoreUnavailable as error:
                if error.outcome == "none":
                    raise
                head, is_in_doubt = None, True
            if head is not None:
                self._cache.adopt(replace(draft.state, head=head), began, targets, is_own=True)
                self._counts["sessions_over"] += len(ended)
                if is_planned:
                    self._counts["plans"] += 1
                    self.unassigned = draft.unassigned
                return results
            self._cache.invalidate()
            await asyncio.sleep(self._core.rng.random() * (self._core.boottime() - began))
        text = f"Group {self._key[1]!r} is being changed by others. Try again."
        raise StoreUnavailable(text, outcome="unknown") if is_in_doubt else StoreBusy(text)

    async def _make_views(self, state: GroupState, queues: Sequence[Queue]) -> Views:
        used = {member.subscription for member in state.members.values()}
        rights: defaultdict[MemberCredential, dict[int, bool]] = defaultdict(dict)
        subscriptions = {slot: state.subscriptions[slot] for slot in used}
        views = {slot: SubscribedQueues(each, rights[each.credential]) for slot, each in subscriptions.items()}
        await self._core.for_each(product(views.values(), queues), lambda pair: pair[0].add(pair[1]))
        return views

    async def read_sessions(self) -> GroupSessions:
        began = self._core.boottime()
        sessions = await self._store.groups.group_sessions(*self._key)
        if began >= self.sessions_read:
            self.sessions, self.sessions_read = sessions, began
        return sessions

    async def remove_members_with_changed_rights(self, state: GroupState) -> None:
        changed = await self._find_changed_rights(state)
        for member in state.members.values():
            if member.subscription in changed:
                self.apply(partial(GroupDraft.leave, number=member.number))

    async def _find_changed_rights(self, state: GroupState) -> set[int]:
        used = {member.subscription for member in state.members.values()}
        credentials = {slot: s.credential for slot, s in state.subscriptions.items() if slot in used}
        present = {credential: await self._rights(credential) for credential in set(credentials.values())}
        return {slot for slot, credential in credentials.items() if present[credential] != credential}

    async def search(self, state: GroupState) -> None:
        await self._store.groups.record_search(*self._key, self.sessions.clock)
        self.sessions = replace(self.sessions, searched=self.sessions.clock)
        async with self._searching:
            queues = await find_queues(self._core, self._store, self._key[0], state)
            digest = await self._core.compute(len(queues), lambda: hash(tuple(queues)))
            if state is self._searched[0] and digest == self._searched[1]:
                return
            views = await self._make_views(state, queues)
            plan = await self._core.in_thread(partial(make_plan, state, queues, views))
        if plan.queues != state.plan:
            self.request_plan()
        self._searched = state, digest


def clock_slack(store: Store) -> int:
    """Returns the max difference between the clocks of two processes, S in the documentation, in milliseconds."""
    return round(store.clock_difference * 1000)


def make_draft(state: GroupState, sessions: GroupSessions, slack: int) -> GroupDraft:
    """Returns a working copy of a state, with a clock that was sampled before the sessions were read.

    Args:
        state: State of the group.
        sessions: Sessions of its members.
        slack: See :func:`clock_slack`.
    """
    seen = {number: member.seen for number, member in sessions.members.items()}
    return GroupDraft(state, sessions.clock, slack, seen)


def _apply_acts(acts: Iterable[Act], draft: GroupDraft) -> tuple[list[JoinedMember], list[Any]]:
    return draft.end_sessions(), [_apply_act(act, draft) for act in acts]


def _apply_act(act: Act, draft: GroupDraft) -> Any:  # noqa: ANN401 - depends on the act
    try:
        return act(draft)
    except QueueyError as error:
        return error


def _finish(draft: GroupDraft, before: GroupState) -> tuple[GroupChange | None, Targets | None]:
    return draft.make_change(), None if draft.state.plan is before.plan else Targets(draft.state)


def _settle_futures(acts: Iterable[tuple[Act, asyncio.Future[Any]]], results: Iterable[Any]) -> None:
    for (_, future), result in zip(acts, results, strict=True):
        if future.done():
            continue
        if isinstance(result, Exception):
            future.set_exception(result)
        else:
            future.set_result(result)
