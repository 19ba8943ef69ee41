"""Rows of messages as Cassandra's protocol has them, encoded column by column: no object is made of a value.

NumPy and Arrow are needed here and in :mod:`.bulk_load`, so only pipelines import these modules.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from queuey.ids import FLIP
from queuey.storage.columns import Integers, bytes_of, rows_as_bytes

_NO_META = b"\0"
"""A loaded message without metadata: nothing must be left of a message that was there."""
_NOTHING = pa.scalar(b"", pa.binary())

# Each value behind its length, in the order of ``message_codec.INSERT``.
_HEAD = np.dtype(
    [
        *(("qid_size", ">i4"), ("qid", ">i8"), ("partition_size", ">i4"), ("partition", ">i4")),
        *(("bucket_size", ">i4"), ("bucket", ">i8")),
        *(("id_size", ">i4"), ("first", ">u4"), ("middle", ">u2"), ("last", ">u2"), ("low", ">u8")),
        ("body_size", ">i4"),
    ]
)
_MIDDLE = np.dtype([("expires_size", ">i4"), ("expires", ">i8"), ("meta_size", ">i4")])
_TAIL = np.dtype([("stamp_size", ">i4"), ("stamp", ">i8"), ("ttl_size", ">i4"), ("ttl", ">i4")])
_END = np.dtype([*_MIDDLE.descr, ("meta", "u1"), *_TAIL.descr])
"""Both, where no row has metadata."""


def encoded_inserts(
    qid: int, partitions: Integers, buckets: Integers, batch: pa.RecordBatch, stamps: Integers, ttls: Integers
) -> list[bytes]:
    """Returns the encoded values of ``message_codec.INSERT`` for each row (see ``driver.requests.Encoded``)."""
    ticks, low, expires = (batch.column(place).to_numpy() for place in range(3))
    body, meta = batch.column(3), batch.column(4)
    head = np.empty(len(batch), _HEAD)
    time = ticks.view(np.uint64)
    _fill(
        head,
        qid_size=8,
        qid=qid,
        partition_size=4,
        partition=partitions,
        bucket_size=8,
        bucket=buckets,
        id_size=16,
        first=time & np.uint64(0xFFFFFFFF),
        middle=time >> np.uint64(32) & np.uint64(0xFFFF),
        last=time >> np.uint64(48) | np.uint64(0x1000),
        low=low.view(np.uint64) ^ np.uint64(FLIP),
        body_size=pc.binary_length(body).to_numpy(),
    )
    if meta.null_count == len(meta):
        end = np.empty(len(batch), _END)
        _fill(end, expires_size=8, expires=expires, meta_size=1, meta=0)
        _fill(end, stamp_size=8, stamp=stamps, ttl_size=4, ttl=ttls)
        ends = [rows_as_bytes(end)]
    else:
        middle, tail, meta = np.empty(len(batch), _MIDDLE), np.empty(len(batch), _TAIL), meta.fill_null(_NO_META)
        _fill(middle, expires_size=8, expires=expires, meta_size=pc.binary_length(meta).to_numpy())
        _fill(tail, stamp_size=8, stamp=stamps, ttl_size=4, ttl=ttls)
        ends = [rows_as_bytes(middle), meta, rows_as_bytes(tail)]
    return bytes_of(pc.binary_join_element_wise(rows_as_bytes(head), body, *ends, _NOTHING))


def _fill(table: NDArray[np.void], **values: Any) -> None:  # noqa: ANN401 - a number, or one for each row
    for name, value in values.items():
        table[name] = value
