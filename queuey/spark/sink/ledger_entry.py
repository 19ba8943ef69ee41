"""What the ledger knows of one chunk of a write: which ids were reserved for its rows, and which rows are done.

Rows are named by their **index** in the chunk, from 0. An entry only grows: generations of ids are added when rows have
to move, and indexes become done.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from queuey.errors import StoreIncompatible

FORMAT = 1

Ranges = tuple[tuple[int, int], ...]
"""Sets of integers: pairs of first and end (exclusive), ascending, with gaps between them."""


class ReservedIds(msgspec.Struct, frozen=True, array_like=True):
    """Ids that were reserved: of index n it is ``(base + n, low)``.

    Attributes:
        base: Ticks.
        low: Of all of them, and of no other id.
        rows: The indexes that moved here from the generation before; of the first one all.
    """

    base: int
    low: int
    rows: Ranges


class ChunkEntry(msgspec.Struct, frozen=True, array_like=True):
    """One chunk.

    Attributes:
        batch: Of a stream: the micro-batch. A later one takes the entry over, so that a stream needs no more of them
            the longer it runs.
        count: All indexes are below.
        order: Equal for equal rows in equal order only; empty: each row says itself which index it has.
        content: Equal for the same rows in any order only; empty likewise.
        generations: The newest last.
        done: Indexes whose message is there, at the newest generation that has the index. Final.
        kept: Those among them that a later attempt found there when it was too late to write: an attempt that was
            killed wrote them, and it is unknown whether in time.
    """

    format: int
    batch: int
    count: int
    order: bytes
    content: bytes
    generations: tuple[ReservedIds, ...]
    done: Ranges = ()
    kept: Ranges = ()

    @property
    def end(self) -> int:
        """The lowest base of ids that lie above all of these (ticks)."""
        return max(one.base for one in self.generations) + self.count

    def newest(self, indexes: Iterable[int]) -> dict[int, int]:
        """Returns of each index which generation counts."""
        found = dict.fromkeys(indexes, 0)
        for number, one in enumerate(self.generations[1:], 1):
            for index in members(one.rows, found):
                found[index] = number
        return found

    def moves(self, indexes: Iterable[int]) -> int:
        """Returns how often that one of some rows has moved that moved most often."""
        counts = dict.fromkeys(indexes, 0)
        for one in self.generations[1:]:
            for index in members(one.rows, counts):
                counts[index] += 1
        return max(counts.values(), default=0)


def encode(entry: ChunkEntry) -> bytes:
    """Returns an entry as the ledger keeps it."""
    return msgspec.msgpack.encode(entry)


def decode(raw: bytes) -> ChunkEntry:
    """Reads an entry.

    Raises:
        StoreIncompatible: It is of a newer version of this program, or of another one.
    """
    try:
        entry = msgspec.msgpack.decode(raw, type=ChunkEntry)
    except msgspec.MsgspecError as error:
        raise StoreIncompatible(f"the ledger has an entry that this version cannot read: {error}") from error
    if entry.format != FORMAT:
        raise StoreIncompatible(f"the ledger has an entry of format {entry.format}; this version knows {FORMAT}")
    return entry


def ranges(indexes: Iterable[int]) -> Ranges:
    """Returns a set of integers as ranges."""
    found: list[tuple[int, int]] = []
    for index in sorted(indexes):
        if found and index < found[-1][1]:
            continue
        if found and index == found[-1][1]:
            found[-1] = found[-1][0], index + 1
        else:
            found.append((index, index + 1))
    return tuple(found)


def union(one: Ranges, other: Ranges) -> Ranges:
    """Returns what is in either."""
    found: list[tuple[int, int]] = []
    for first, end in sorted((*one, *other)):
        if found and first <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((first, end))
    return tuple(found)


def members(some: Ranges, indexes: Iterable[int]) -> list[int]:
    """Returns those of the indexes that are in a set, in the order given."""
    if not some:
        return []
    if len(some) == 1:
        first, end = some[0]
        return [index for index in indexes if first <= index < end]
    inside = {index for first, end in some for index in range(first, end)}
    return [index for index in indexes if index in inside]


def lacking(some: Ranges, indexes: Sequence[int]) -> list[int]:
    """Returns those of the indexes that are not in a set, in the order given."""
    inside = set(members(some, indexes))
    return [index for index in indexes if index not in inside] if inside else list(indexes)
