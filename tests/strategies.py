"""Hypothesis strategies for the basic types."""

from __future__ import annotations

import uuid

from hypothesis import settings
from hypothesis import strategies as st

from queuey.model import ids
from queuey.model.ids import Position

ON_STORES = settings(max_examples=20 if settings().derandomize else settings().max_examples)
"""For tests whose examples each create a queue on a store: fewer examples in ``make test``."""
CORNER_TICKS = (0, 1, 0xFFFF_FFFF, 1 << 32, (1 << 48) - 1, 1 << 48, ids.EPOCH_TICKS, ids.TICKS_MAX - 1, ids.TICKS_MAX)
CORNER_LOWS = (ids.LOW_MIN, ids.LOW_MIN + 1, -1, 0, 1, 0x7F, 0x80, 0xFF, 0x100, ids.LOW_MAX - 1, ids.LOW_MAX)


def ticks() -> st.SearchStrategy[int]:
    """Every 60-bit time, often one at the edges of the UUID's three time fields."""
    return st.sampled_from(CORNER_TICKS) | st.integers(0, ids.TICKS_MAX)


def lows() -> st.SearchStrategy[int]:
    """Every signed 64-bit integer, often one whose bytes change sign."""
    return st.sampled_from(CORNER_LOWS) | st.integers(ids.LOW_MIN, ids.LOW_MAX)


def positions() -> st.SearchStrategy[Position]:
    return st.tuples(ticks(), lows())


def neighbourhoods() -> st.SearchStrategy[tuple[Position, Position]]:
    """Two positions that are likely to share their time, their low part or most of its bytes."""

    def beside(position: Position) -> st.SearchStrategy[tuple[Position, Position]]:
        time, low = position
        flipped = st.integers(0, 63).map(lambda bit: low ^ (1 << bit) if bit < 63 else ~low)
        return st.tuples(st.just(position), st.tuples(st.just(time) | ticks(), st.just(low) | flipped | lows()))

    return positions().flatmap(beside)


def time_uuids() -> st.SearchStrategy[uuid.UUID]:
    fields = st.tuples(
        st.integers(0, (1 << 32) - 1),
        st.integers(0, (1 << 16) - 1),
        st.integers(0, (1 << 12) - 1).map(lambda high: high | 0x1000),
        st.integers(0x80, 0xBF),
        st.integers(0, 0xFF),
        st.integers(0, (1 << 48) - 1),
    )
    return fields.map(lambda parts: uuid.UUID(fields=parts))


def text_bodies(max_size: int = 200) -> st.SearchStrategy[str]:
    """Non-empty text that UTF-8 can encode, including NUL, line ends and emoji."""
    return st.text(st.characters(codec="utf-8"), min_size=1, max_size=max_size)


def bodies() -> st.SearchStrategy[str | bytes]:
    return text_bodies() | st.binary(min_size=1, max_size=200)
