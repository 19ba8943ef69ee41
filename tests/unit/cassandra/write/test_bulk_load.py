"""At which level messages are loaded."""

from __future__ import annotations

import numpy as np
import pytest

from queuey import ids
from queuey.messages import Message
from queuey.storage.cassandra import bucketing
from queuey.storage.cassandra.write import bulk_load
from queuey.storage.columns import columns_of

NOW = ids.EPOCH_TICKS + 1_700_000_000 * ids.TICKS_PER_SECOND


@pytest.mark.parametrize(
    ("count", "seconds", "size", "level"),
    [
        (0, 0, 0, bucketing.LOAD),
        (200, 0.001, 100, bucketing.LOAD),
        (10_000, 0.001, 100, bucketing.DENSE_LOAD),
        (10_000, 900, 100, bucketing.LOAD),
        (4, 0.001, 4_000_000, bucketing.DENSE_LOAD),
        (4, 900, 4_000_000, bucketing.LOAD),
        (40, 900, 4_000_000, bucketing.DENSE_LOAD),
    ],
)
def test_places_do_not_get_too_full(count: int, seconds: float, size: int, level: int) -> None:
    """Messages go to narrow buckets if wide ones would get too many rows, or too many bytes, at their density."""
    step = round(seconds * ids.TICKS_PER_SECOND / max(1, count - 1))
    messages = [Message(NOW + number * step, 0, 1, NOW, bytes(size)) for number in range(count)]
    assert bulk_load._width_for(columns_of(messages)) == level


@pytest.mark.parametrize(("size", "most"), [(1_000, 8), (200_000, 8), (300_000, 4), (900_000, 1), (4_000_000, 1)])
def test_long_bodies_do_not_crowd_a_connection(size: int, most: int) -> None:
    """As many batches are on the way as before while they are small, fewer if bodies are long, and never none."""
    weights = {weight for _, _, weight in bulk_load._batches(np.full(20, size))}
    assert all(0 < weight <= bulk_load.FLYING for weight in weights)
    assert bulk_load.FLYING // max(weights) == most
