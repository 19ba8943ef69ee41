"""Spoils the records of a good history, one at a time, so that a checker that works must notice."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, TypeVar

R = TypeVar("R")
T = TypeVar("T")

Spoil = Callable[[list[R], random.Random], list[R] | None]
"""Gives spoiled records, or None where there is nothing of the kind."""


def instead(records: list[R], old: R, *new: R) -> list[R]:
    """Returns the records with others in the place of one."""
    return [one for each in records for one in (new if each is old else (each,))]


def spoil_one(find: Callable[[list[R]], list[Any]], change: Callable[[Any], tuple[R, ...]]) -> Spoil[R]:
    """Spoils by a change of one of the records that are found."""

    def spoil(records: list[R], rng: random.Random) -> list[R] | None:
        found = find(records)
        if not found:
            return None
        old = rng.choice(found)
        return instead(records, old, *change(old))

    return spoil
