"""Hashes of stored messages, for the comparison with receipts. Bodies do not leave the tasks that scan them."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import BinaryType, LongType, StructField, StructType

from queuey.pipeline.tasks import Batches
from queuey.spark.options import SourceOptions, StoreOptions, Subscribe
from queuey.spark.slices import QueueSlice
from queuey.spark.source import columns
from queuey.spark.source.read_task import scan_rows
from queuey.spark.start_and_end import EARLIEST, LATEST, Bounds

HASH_BYTES = 16
"""Number of bytes of a hash: the first half of SHA-256, as in the client's receipts."""

_KEY_COLUMNS = ("queue", "partition", "id")
_READ_SCHEMA = StructType(
    [field for field in columns.read_schema(headers=False) if field.name in {*_KEY_COLUMNS, "value"}]
)
SCHEMA = StructType(
    [
        *(field for field in _READ_SCHEMA if field.name in _KEY_COLUMNS),
        StructField("hash", BinaryType(), nullable=False),
        StructField("size", LongType(), nullable=False),
    ]
)
_READ_ROWS, _ROWS = columns.arrow_schema(_READ_SCHEMA), columns.arrow_schema(SCHEMA)
_decode = msgspec.msgpack.Decoder(list[QueueSlice]).decode


def encode_slices(parts: Iterable[QueueSlice]) -> bytes:
    return msgspec.msgpack.encode(list(parts))


def scan_hashes(options: StoreOptions, payload: bytes) -> Batches:
    """Scans slices and hashes the bodies. Runs in a task.

    Skips queues that were purged or deleted since the slices were planned.
    """
    parts = _decode(payload)
    read = SourceOptions(
        store=options,
        selection=Subscribe(tuple(dict.fromkeys(part.queue for part in parts))),
        starting=Bounds("startingOffsets", EARLIEST),
        ending=Bounds("endingOffsets", LATEST),
        fail_on_data_loss=False,
    )
    for batch in scan_rows(read, parts, _READ_ROWS):
        yield hash_bodies(batch)


def hash_bodies(batch: pa.RecordBatch) -> pa.RecordBatch:
    bodies = batch.column("value")
    hashes = pa.array([sha256(body).digest()[:HASH_BYTES] for body in bodies.to_pylist()], pa.binary())
    sizes = pc.binary_length(bodies).cast(pa.int64())
    columns = [batch.column(field.name) for field in SCHEMA if field.name in _KEY_COLUMNS]
    return pa.RecordBatch.from_arrays([*columns, hashes, sizes], schema=_ROWS)
