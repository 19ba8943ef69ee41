"""What filters of a query say about the place of messages. Pure.

Pushing is an optimisation only: Spark evaluates every filter again, so what is not understood here is left to it.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Collection, Iterable
from typing import Any, TypeVar

import msgspec
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from queuey import ids
from queuey.ids import EPOCH_TICKS, FIRST, LAST, LOW_MIN, TICKS_MAX, Position
from queuey.spark.columns import TICKS_PER_MICROSECOND

T = TypeVar("T")

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_PREFIX = re.compile(r"[0-9a-f]{1,32}")
_COMPARISONS: dict[type[Filter], tuple[str, int]] = {
    GreaterThan: ("lower", 1),
    GreaterThanOrEqual: ("lower", 0),
    LessThan: ("upper", 0),
    LessThanOrEqual: ("upper", 1),
}
"""Which side a comparison bounds, and with which end of the value's range."""
_DIGITS = 32
_HALF = 16


class Narrowing(msgspec.Struct, frozen=True):
    """Where all messages are that pass the filters: no others need to be read.

    Attributes:
        queues, partitions: None: any.
        lower, upper: Positions in ``[lower, upper)``.
    """

    queues: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    lower: Position = FIRST
    upper: Position = LAST

    def among(self, *, queues: Collection[str] | None = None, partitions: Collection[int] | None = None) -> Narrowing:
        """Narrows to some queues or partitions."""
        return msgspec.structs.replace(
            self, queues=_both(self.queues, queues), partitions=_both(self.partitions, partitions)
        )

    def within(self, lower: Position = FIRST, upper: Position = LAST) -> Narrowing:
        """Narrows to a range."""
        return msgspec.structs.replace(self, lower=max(self.lower, lower), upper=min(self.upper, upper))


ANYWHERE = Narrowing()


def narrowed(filters: Iterable[Filter]) -> Narrowing:
    """Returns where messages are that pass all of the filters."""
    found = ANYWHERE
    for one in filters:
        column: tuple[str, ...] = getattr(one, "attribute", ())
        understood = _COLUMNS.get(column[0]) if len(column) == 1 else None
        if understood is not None:
            found = understood(found, one)
    return found


def _by_queue(found: Narrowing, one: Filter) -> Narrowing:
    values = _equal_to(one)
    return found if values is None else found.among(queues=[value for value in values if isinstance(value, str)])


def _by_partition(found: Narrowing, one: Filter) -> Narrowing:
    values = _equal_to(one)
    return found if values is None else found.among(partitions=[value for value in values if isinstance(value, int)])


def _by_id(found: Narrowing, one: Filter) -> Narrowing:
    """Ids are only compared for being equal: the order of their texts is not theirs."""
    try:
        positions = [ids.parse_position(value) for value in _equal_to(one) or ()]
    except (ValueError, AttributeError, TypeError):
        return found
    return found.within(min(positions), ids.following(max(positions))) if positions else found


def _by_position(found: Narrowing, one: Filter) -> Narrowing:
    return _by_range(found, one, _text_place)


def _by_timestamp(found: Narrowing, one: Filter) -> Narrowing:
    return _by_range(found, one, _instant_place)


def _by_range(found: Narrowing, one: Filter, place: Callable[[Any], tuple[Position, Position] | None]) -> Narrowing:
    """Narrows by a comparison.

    Args:
        found: What is known already.
        one: The filter.
        place: Gives for a value the range of positions whose column equals it, empty if there can be none; None for
            values that it does not understand.
    """
    values = _equal_to(one)
    if values is not None:
        places = [place(value) for value in values]
        known = [at for at in places if at is not None]
        if not known or len(known) < len(places):
            return found
        return found.within(min(lower for lower, _ in known), max(upper for _, upper in known))
    at = place(getattr(one, "value", None))
    side, end = _COMPARISONS.get(type(one), ("", 0))
    return found.within(**{side: at[end]}) if side and at is not None else found


def _equal_to(one: Filter) -> tuple[Any, ...] | None:
    """Returns the values of which a column must have one; None if the filter says something else."""
    match one:
        case EqualTo(value=value) | EqualNullSafe(value=value):
            return (value,)
        case In(value=values):
            return tuple(values)
    return None


def _text_place(value: object) -> tuple[Position, Position] | None:
    """Returns the range of a text among positions; a shorter text lies right before all that begin with it."""
    if not isinstance(value, str) or _PREFIX.fullmatch(value) is None:
        return None
    digits = value.ljust(_DIGITS, "0")
    ticks = int(digits[:_HALF], 16)
    if ticks > TICKS_MAX:
        return LAST, LAST
    at = ticks, int(digits[_HALF:], 16) + LOW_MIN
    return at, ids.following(at) if len(value) == _DIGITS else at


def _instant_place(value: object) -> tuple[Position, Position] | None:
    """Returns the range of the ticks that a microsecond has."""
    if not isinstance(value, dt.datetime) or value.tzinfo is None:
        return None
    microseconds = (value - _EPOCH) // dt.timedelta(microseconds=1)
    ticks = microseconds * TICKS_PER_MICROSECOND + EPOCH_TICKS
    return _start(ticks), _start(ticks + TICKS_PER_MICROSECOND)


def _start(ticks: int) -> Position:
    return (min(max(ticks, 0), TICKS_MAX), LOW_MIN) if ticks <= TICKS_MAX else LAST


def _both(one: frozenset[T] | None, other: Collection[T] | None) -> frozenset[T] | None:
    if other is None:
        return one
    return frozenset(other) if one is None else one & frozenset(other)


_COLUMNS: dict[str, Callable[[Narrowing, Filter], Narrowing]] = {
    "queue": _by_queue,
    "partition": _by_partition,
    "id": _by_id,
    "position": _by_position,
    "timestamp": _by_timestamp,
}
