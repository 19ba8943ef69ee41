"""Fair order between applications."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")


def order_in_turns(items: Iterable[T], application: Callable[[T], str]) -> list[T]:
    """Orders items round robin: the first item of each application, then the second items, and so on."""
    turns = Counter[str]()
    ordered = []
    for item in items:
        name = application(item)
        ordered.append((turns[name], item))
        turns[name] += 1
    return [item for _, item in sorted(ordered, key=lambda pair: pair[0])]
