"""The ledger entry of a chunk: the ids that were reserved for its rows.

Rows are named by their **index** in the chunk, from 0. An entry only grows: generations of ids are added when rows have
to move, and indexes become done.
"""

from __future__ import annotations

import zlib

import msgspec
import numpy as np

from queuey.errors import StoreIncompatible
from queuey.storage.columns import Integers, Mask

FORMAT = 1
MAX_RANGES = 200
"""Max ranges of a set; larger sets are stored as bits."""

IndexSet = tuple[tuple[int, int], ...] | bytes
"""A set of integers from 0 on: pairs of first and end (exclusive), ascending, with gaps between; or compressed bits."""


class ReservedIds(msgspec.Struct, frozen=True, array_like=True):
    """Ids that were reserved: see ``ChunkEntry.span`` for which index gets which.

    Attributes:
        base: Ticks.
        low: Of all of them, and of no other id.
        rows: The indexes that moved here from the generation before; of the first one all, whatever it says.
    """

    base: int
    low: int
    rows: IndexSet = ()


class ChunkEntry(msgspec.Struct, frozen=True, array_like=True):
    """One chunk.

    Attributes:
        batch: Of a stream: the micro-batch. A later one takes the entry over, so that a stream needs no more of them
            the longer it runs.
        span: Ticks that a generation's ids take: index n has ``base + n % span``. Rows whose indexes share a tick are
            of different partitions.
        order: Equal for equal rows in equal order only; empty: each row says itself which index it has.
        content: Equal for the same rows in any order only; empty likewise.
        generations: The newest last.
        done: Indexes whose message is there, at the newest generation that has the index. Final.
        kept: Those among them that a later attempt found there when it was too late to write: an attempt that was
            killed wrote them, and it is unknown whether in time.
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
        """The lowest base of ids that lie above all of these (ticks)."""
        return max(one.base for one in self.generations) + self.span

    def newest(self, indexes: Integers) -> Integers:
        """Returns of each index which generation counts."""
        found = np.zeros(len(indexes), np.int64)
        for number, one in enumerate(self.generations[1:], 1):
            found[members(one.rows, indexes)] = number
        return found

    def moves(self, indexes: Integers) -> int:
        """Returns how often that one of some rows has moved that moved most often."""
        counts = sum(
            (members(one.rows, indexes).astype(int) for one in self.generations[1:]), np.zeros(len(indexes), int)
        )
        return int(counts.max(initial=0))


def encode(entry: ChunkEntry) -> bytes:
    """Returns an entry as the ledger keeps it."""
    return msgspec.msgpack.encode(entry)


def decode(raw: bytes) -> ChunkEntry:
    """Reads an entry.

    Raises:
        StoreIncompatible: It is of a newer version of this program, or of another one.
    """
    try:
        entry = _decode(raw)
    except msgspec.MsgspecError as error:
        raise StoreIncompatible(f"the ledger has an entry that this version cannot read: {error}") from error
    if entry.format != FORMAT:
        raise StoreIncompatible(f"the ledger has an entry of format {entry.format}; this version knows {FORMAT}")
    return entry


_decode = msgspec.msgpack.Decoder(ChunkEntry).decode


def index_set(indexes: Integers) -> IndexSet:
    """Returns a set of integers as the ledger keeps it."""
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


def numbers_in(some: IndexSet) -> Integers:
    """Returns what is in a set, ascending."""
    if isinstance(some, bytes):
        return np.flatnonzero(np.unpackbits(np.frombuffer(zlib.decompress(some), np.uint8)))
    return np.concatenate([np.arange(0), *(np.arange(first, end) for first, end in some)])


def union(one: IndexSet, more: Integers) -> IndexSet:
    """Returns what is in a set, and more."""
    if not len(more):
        return one
    return index_set(np.concatenate([numbers_in(one), more]))


def members(some: IndexSet, indexes: Integers) -> Mask:
    """Returns which of the indexes are in a set."""
    if isinstance(some, bytes):
        return np.isin(indexes, numbers_in(some))
    found = np.zeros(len(indexes), bool)
    for first, end in some:
        found |= (first <= indexes) & (indexes < end)
    return found
