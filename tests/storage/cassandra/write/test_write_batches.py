"""Tests of lanes: which are kept, and how much one flush takes from one."""

from __future__ import annotations

from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuey.model.messages import NewMessage
from queuey.storage.cassandra.write.write_batches import (
    FLUSH_BYTES,
    FLUSH_ROWS,
    AppendOperation,
    OperationPart,
    PartitionBuffer,
    PartitionBuffers,
)


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 8))))
def test_lanes_with_something_in_them_are_kept(steps: list[tuple[bool, int]]) -> None:
    """A lane with messages is kept; of the empty ones only a limited number."""
    buffers, busy = PartitionBuffers(most=3), set()
    for taken, partition in steps:
        if taken:
            buffers.acquire(7, partition)
            busy.add(partition)
        elif partition in busy:
            buffers.release(buffers[7, partition])
            busy.remove(partition)
            assert len(buffers) <= max(3, len(busy))
        assert {(7, partition) for partition in busy} <= buffers.keys()


def part(messages: int, size: int) -> OperationPart:
    operation = AppendOperation(Mock(), [], None, Mock())
    operation.divide([NewMessage("x" * size, 1, 60)] * messages)
    return operation.parts[1]


@pytest.mark.parametrize(
    ("messages", "size", "taken"), [(1, 1, 10), (FLUSH_ROWS // 2, 1, 2), (1, FLUSH_BYTES // 2, 2), (1, FLUSH_BYTES, 1)]
)
def test_a_flush_takes_so_many_rows_and_bytes(messages: int, size: int, taken: int) -> None:
    """Waiting messages are sent in flushes of a bounded size, and none is lost."""
    buffer = PartitionBuffer(7, 1)
    given_parts = [part(messages, size) for _ in range(10)]
    buffer.put(given_parts)
    assert buffer.take() == given_parts[:taken]
    assert (buffer.rows, buffer.size) == (messages * (10 - taken), messages * size * (10 - taken))
