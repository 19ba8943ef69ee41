"""What was read within the last seconds, and is of no use when it is older."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Recent(Generic[K, V]):
    """A cache by age and weight. Not for several threads at once, but for :meth:`get`.

    Args:
        now: Seconds, by the clock that ages are measured with.
        age: Seconds after which what was read is of no use.
        most: What is kept may weigh so much.
    """

    def __init__(self, now: Callable[[], float], age: float, most: int) -> None:
        self._now = now
        self._age = age
        self._most = most
        self._kept: OrderedDict[K, tuple[V, float, int]] = OrderedDict()
        """In the order in which it was put here, which is nearly that in which it was read."""
        self._weight = 0

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: K) -> V | None:
        """Returns what is kept, which may be too old by now."""
        found = self._kept.get(key)
        return None if found is None else found[0]

    def put(self, key: K, value: V, read_at: float, weight: int = 1) -> None:
        """Keeps a value, and drops what is too old by now, or the oldest of what is too much."""
        self.pop(key)
        self._kept[key] = value, read_at, weight
        self._weight += weight
        oldest = self._now() - self._age
        while self._kept:
            key, (_, began, _) = next(iter(self._kept.items()))
            if began >= oldest and self._weight <= self._most:
                break
            self.pop(key)

    def pop(self, key: K) -> V | None:
        """Drops a value; returns it."""
        found = self._kept.pop(key, None)
        if found is None:
            return None
        self._weight -= found[2]
        return found[0]

    def clear(self) -> None:
        """Drops all."""
        self._kept.clear()
        self._weight = 0
