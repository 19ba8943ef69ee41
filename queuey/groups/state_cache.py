"""A group's state as this process last read it."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import NamedTuple, NewType

from msgspec.structs import replace

from queuey.groups.heartbeat_answers import Targets
from queuey.groups.rules.group_state import GroupState, read_state
from queuey.model.errors import GroupElsewhere
from queuey.model.groups import GroupHead, StoredGroup
from queuey.model.rights import MemberCredential
from queuey.runtime.event_loop import Core
from queuey.storage import Store

ReadRights = Callable[[MemberCredential], Awaitable[MemberCredential | None]]
"""Returns a credential with its current rights, or None if the credential has ended."""

Moment = NewType("Moment", int)
"""Number of a moment in a process: a later one is higher, whatever the clocks do (:meth:`StateCache.next_moment`)."""


async def keep_rights(credential: MemberCredential) -> MemberCredential:
    return credential


class GroupContext(NamedTuple):
    """What the parts of a group in a process share.

    Attributes:
        store: The storage; its owner closes it.
        core: Event loop and clock.
        key: Application and name of the group.
        rights: Returns a credential with its current rights.
        searching: Held by one group of an application at a time, while it searches queues and makes a plan.
        counts: Counts over all groups of this process: groups at work, plans, moves by origin, ended sessions.
        announce: Tells other workers of the service that the group has changed.
        forget: Drops the group from memory, because it does not exist.
    """

    store: Store
    core: Core
    key: tuple[str, str]
    rights: ReadRights
    searching: asyncio.Lock
    counts: Counter[str]
    announce: Callable[[], None]
    forget: Callable[[], None]


class StateCache:
    """The state of a group in the memory of a process. Used in the loop's thread.

    Args:
        context: The group.
        changed: Called when the state has changed.

    Attributes:
        state: The state; its version is 0 if the group does not exist.
        targets: Targets of the state's plan.
        targets_since: When these targets became current.
        is_own: The state was written by this process.
    """

    def __init__(self, context: GroupContext, changed: Callable[[], None]) -> None:
        self._store, self._core, self._key = context.store, context.core, context.key
        self._changed = changed
        self._reading = asyncio.Lock()
        self._read_serially_at = -math.inf
        """Boot time of the last serial read."""
        self.state = GroupState()
        self.targets = Targets(self.state)
        self._checked_at = -math.inf
        """Boot time at which the state was read or its head compared."""
        self._last_moment = self._began = self.targets_since = Moment(0)
        self.is_own = False

    @property
    def is_here(self) -> bool:
        return self.state.head.centre in {"", self._store.groups.centre}

    def require_here(self) -> None:
        if not self.is_here:
            raise GroupElsewhere(self._key[1], self.state.head.centre)

    def next_moment(self) -> Moment:
        self._last_moment = Moment(self._last_moment + 1)
        return self._last_moment

    async def refresh(self, max_age: float = 0.0, *, serial_age: float = math.inf) -> GroupState:
        """Returns the state, at most some seconds old.

        Args:
            max_age: Max seconds since the state was read or its head compared; 0 starts a read now.
            serial_age: Max seconds since the head was read serially, if the store has data centres.
        """
        now = self._core.boottime()
        is_serial = bool(self._store.groups.centre) and now - self._read_serially_at > serial_age
        if is_serial or not max_age or now - self._checked_at > max_age:
            wanted_since = self.next_moment()
            async with self._reading:
                while self._began < wanted_since or (is_serial and self._read_serially_at < now):
                    await self._read(is_serial=is_serial)
        return self.state

    async def _read(self, *, is_serial: bool) -> None:
        """Reads the head, and all of the state if the head's version is another one.

        Adopts the result unless this process has changed the state meanwhile.
        """
        before, began, now = self.state, self.next_moment(), self._core.boottime()
        head = await self._store.groups.group_head(*self._key, serial=is_serial)
        state, targets = before, None
        if head is None:
            state = self._make_empty(before)
        elif head.version != before.head.version:
            stored = await self._store.groups.group_state(*self._key)
            if stored is None:
                state = self._make_empty(before)
            else:
                state, targets = await self._core.in_thread(partial(_read_stored, stored))
        if head is not None and state.head.centre != head.centre:  # Only the head is read in all data centres.
            state = replace(state, head=replace(state.head, centre=head.centre))
        if self.state is before:  # Otherwise this process has changed it meanwhile, and this read may be older.
            self._began = began
            self.adopt(state, now, targets)
        if is_serial:
            self._read_serially_at = now

    def _make_empty(self, before: GroupState) -> GroupState:
        empty = GroupState(head=GroupHead(centre=self._store.groups.centre))
        return before if before == empty else empty

    def adopt(self, state: GroupState, checked: float, targets: Targets | None = None, *, is_own: bool = False) -> None:
        """Sets a state that was current at boot time ``checked`` or later; calls ``changed`` if it is another one.

        If its plan is new, so are the targets; they are made here if none are given.
        """
        self._checked_at = checked
        if state is not self.state:
            if (state.head.born, state.head.epoch) != (self.state.head.born, self.state.head.epoch):
                self.targets, self.targets_since = targets or Targets(state), self.next_moment()
            self.state, self.is_own = state, is_own
            self._changed()

    def invalidate(self) -> None:
        """Forces a read before the next use: the state was changed elsewhere, or a change is in doubt."""
        self._checked_at = -math.inf


def _read_stored(stored: StoredGroup) -> tuple[GroupState, Targets]:
    state = read_state(stored)
    return state, Targets(state)
