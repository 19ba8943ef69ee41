"""A cache of what was read within the last seconds, and is of no use when it is older."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Recent(Generic[K, V]):
    """A cache by age and weight. Not for several threads at once, but for ``get``."""

    def __init__(self, now: Callable[[], float], age: Callable[[], float], most: int) -> None:
        self._now = now
        self._age = age
        self._most = most
        self._kept: OrderedDict[K, tuple[float, int]] = OrderedDict()
        """When each was read, and its weight, in the order in which it was put here."""
        self._weight = 0
        self._values: dict[K, V] = {}
        self.get: Callable[[K], V | None] = self._values.get
        """Returns what is kept, which may be too old by now."""

    def __len__(self) -> int:
        return len(self._kept)

    def put(self, key: K, value: V, read_at: float, weight: int = 1) -> None:
        """Keeps a value, and drops what is too old by now, or the oldest of what is too much."""
        self.pop(key)
        self._kept[key] = read_at, weight
        self._values[key] = value
        self._weight += weight
        oldest = self._now() - self._age()
        while self._kept:
            key, (began, _) = next(iter(self._kept.items()))
            if began >= oldest and self._weight <= self._most:
                break
            self.pop(key)

    def pop(self, key: K) -> V | None:
        found = self._kept.pop(key, None)
        if found is None:
            return None
        self._weight -= found[1]
        return self._values.pop(key)

    def clear(self) -> None:
        self._kept.clear()
        self._values.clear()
        self._weight = 0
