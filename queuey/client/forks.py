"""Objects in a child that was forked: the parent keeps their connections and threads."""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet


class Forkable(Protocol):
    def begin_in_child(self) -> None:
        """Called in the child's only thread, before anything else runs there. Must not block."""


_living: WeakSet[Forkable] = WeakSet()


def begin_in_children(one: Forkable) -> None:
    """Calls ``begin_in_child`` of an object in each child that is forked while the object lives."""
    _living.add(one)


def _begin() -> None:
    for one in list(_living):
        one.begin_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin)
