"""A group's state as this process last read it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from functools import partial

from queuey.groups.rows import read_state
from queuey.groups.state import GroupState, Head
from queuey.service.core import Core
from queuey.service.groups.answers import Targets
from queuey.storage import Store


class StateCache:
    """The state of a group in the memory of a process. Used in the loop's thread.

    Args:
        store: Has the state.
        core: The loop and the clock.
        application: The owner.
        name: Of the group.
        changed: Called when the state is another one.

    Attributes:
        state: As it was at ``checked`` or later; of version 0 if there is no such group.
        targets: Its targets.
        checked: Boot time at which it was read, or its head was compared.
        adopted: Boot time at which it came to be the present one.
        is_own: It was written by this process.
    """

    def __init__(self, store: Store, core: Core, application: str, name: str, changed: Callable[[], None]) -> None:
        self._store = store
        self._core = core
        self._key = application, name
        self._changed = changed
        self._reading = asyncio.Lock()
        self._serial = -math.inf
        """Boot time of the last serial read."""
        self.state = self._empty = GroupState(head=Head(centre=store.centre))
        self.targets = Targets(self.state)
        self.checked = self.adopted = -math.inf
        self.is_own = False

    async def refresh(self, since: float, *, serial: float = -math.inf) -> GroupState:
        """Returns the state at a boot time or later.

        Args:
            since: The boot time.
            serial: Boot time since which the head must have been read serially, if the store has data centres.
        """
        if not self._store.centre:
            serial = -math.inf
        while self.checked < since or self._serial < serial:
            async with self._reading:
                if self.checked < since or self._serial < serial:
                    await self._read(is_serial=self._serial < serial)
        return self.state

    async def _read(self, *, is_serial: bool) -> None:
        before, began = self.state, self._core.boottime()
        head = await self._core.in_thread(partial(self._store.group_head, *self._key, serial=is_serial))
        state = before
        if head is None:
            state = self._empty
        elif head.version != before.head.version:
            stored = await self._core.in_thread(partial(self._store.group_state, *self._key))
            state = self._empty if stored is None else read_state(stored)
        if self.state is before:  # Else this process has changed it meanwhile, and this may be older.
            self.adopt(state, began)
        if is_serial:
            self._serial = began

    def adopt(self, state: GroupState, checked: float, *, is_own: bool = False) -> None:
        """Takes a state that was the present one at a boot time or later."""
        self.checked = checked
        if state is not self.state:
            self.state, self.targets, self.is_own = state, Targets(state), is_own
            self.adopted = self._core.boottime()
            self._changed()

    def doubt(self) -> None:
        """Has the state read before it is used again: another process has changed it, or a change is in doubt."""
        self.checked = -math.inf
