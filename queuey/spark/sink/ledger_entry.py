"""The ledger entry of a chunk: the ids that are reserved for its rows.

The **index** of a row is its number in the chunk, from 0. An entry only grows: generations of ids are added when rows
have to move, and indexes become done.
"""

from __future__ import annotations

import zlib

import msgspec
import numpy as np

from queuey.model.errors import StoreIncompatible
from queuey.storage.arrow_format import Integers, Mask

FORMAT = 1
MAX_RANGES = 200
"""Max ranges of a set; sets with more ranges are stored as bits."""

IndexSet = tuple[tuple[int, int], ...] | bytes
"""A set of integers from 0 on: pairs of first and end (exclusive), ascending, with gaps between; or compressed bits."""


class ReservedIds(msgspec.Struct, frozen=True, array_like=True):
    """A generation of reserved ids; ``ChunkEntry.span`` describes which index has which id.

    Attributes:
        base: The lowest time, in ticks.
        low: The low half of all these ids, which no other id has.
        rows: The indexes that moved here from the previous generation; ignored in the first one, which has all.
    """

    base: int
    low: int
    rows: IndexSet = ()


class ChunkEntry(msgspec.Struct, frozen=True, array_like=True):
    """Ledger entry of a chunk.

    Attributes:
        batch: The micro-batch of a stream, else 0. A later micro-batch takes over the entry, so the number of entries
            does not grow with the age of a stream.
        span: Number of ticks of a generation's ids: index n has ``base + n % span``. Rows whose indexes share a tick
            are in different partitions.
        order: Digest of the rows in their order; empty if each row has its own index.
        content: Digest of the rows in any order; empty if each row has its own index.
        generations: The reserved ids, the newest last.
        done: Indexes whose message is stored, at the newest generation that has the index. Final.
        kept: Done indexes that an attempt found stored when it was too late to write: a killed attempt wrote them,
            and it is unknown whether in time.
    """

    format: int
    batch: int
    span: int
    order: bytes
    content: bytes
    generations: tuple[ReservedIds, ...]
    done: IndexSet = ()
    kept: IndexSet = ()

    @property
    def end(self) -> int:
        """The lowest base above all these ids, in ticks."""
        return max(generation.base for generation in self.generations) + self.span

    def find_newest_generations(self, indexes: Integers) -> Integers:
        newest = np.zeros(len(indexes), np.int64)
        for number, generation in enumerate(self.generations[1:], 1):
            newest[find_members(generation.rows, indexes)] = number
        return newest

    def max_moves(self, indexes: Integers) -> int:
        counts = sum(
            (find_members(generation.rows, indexes).astype(int) for generation in self.generations[1:]),
            np.zeros(len(indexes), int),
        )
        return int(counts.max(initial=0))


def encode(entry: ChunkEntry) -> bytes:
    return msgspec.msgpack.encode(entry)


def decode(raw: bytes) -> ChunkEntry:
    """Decodes an entry.

    Raises:
        StoreIncompatible: Another version of this program, or another program, wrote the entry.
    """
    try:
        entry = _decode(raw)
    except msgspec.MsgspecError as error:
        raise StoreIncompatible(f"the ledger has an entry that this version cannot read: {error}") from error
    if entry.format != FORMAT:
        raise StoreIncompatible(f"the ledger has an entry of format {entry.format}; this version reads format {FORMAT}")
    return entry


_decode = msgspec.msgpack.Decoder(ChunkEntry).decode


def make_index_set(indexes: Integers) -> IndexSet:
    numbers = np.unique(indexes)
    if not len(numbers):
        return ()
    gaps = np.flatnonzero(np.diff(numbers) > 1)
    if len(gaps) < MAX_RANGES:
        firsts, ends = numbers[[0, *gaps + 1]], numbers[[*gaps, -1]] + 1
        return tuple(zip(firsts.tolist(), ends.tolist(), strict=True))
    bits = np.zeros(int(numbers[-1]) + 1, bool)
    bits[numbers] = True
    return zlib.compress(np.packbits(bits).tobytes())


def list_members(indexes: IndexSet) -> Integers:
    if isinstance(indexes, bytes):
        return np.flatnonzero(np.unpackbits(np.frombuffer(zlib.decompress(indexes), np.uint8)))
    return np.concatenate([np.arange(0), *(np.arange(first, end) for first, end in indexes)])


def union(indexes: IndexSet, more: Integers) -> IndexSet:
    if not len(more):
        return indexes
    return make_index_set(np.concatenate([list_members(indexes), more]))


def find_members(index_set: IndexSet, indexes: Integers) -> Mask:
    if isinstance(index_set, bytes):
        return np.isin(indexes, list_members(index_set))
    result = np.zeros(len(indexes), bool)
    for first, end in index_set:
        result |= (first <= indexes) & (indexes < end)
    return result
