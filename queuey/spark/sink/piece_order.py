"""Reserves ids for numbered rows in the order of their numbers, regardless of the order in which tasks reach them.

Numbers are divided into pieces, and a piece's ids are reserved when a task reaches it. One ledger entry holds the
reserved ids, as **stretches** of consecutive pieces. A task that skips pieces which no task has reached yet leaves room
for their ids::

    0 ── 1 ── 2 ·· 3 ·· 4 ·· 5 ·· 6 ── 7        pieces; 0 to 2 and 6 to 7 are reserved
    ├─ stretch ─┤    room for    ├ stretch ┤

A piece that has no room left gets the earliest possible ids: exactly once has priority over the order.
"""

from __future__ import annotations

import msgspec


class Stretch(msgspec.Struct, frozen=True, array_like=True):
    """Consecutive pieces that are reserved.

    Attributes:
        first, last: The lowest and the highest piece.
        base: Base of the ids of ``first``, in ticks.
        top: Base of the ids of ``last``, in ticks.
    """

    first: int
    last: int
    base: int
    top: int


class PieceOrder(msgspec.Struct, frozen=True, array_like=True):
    """Ledger entry with the reserved ids of all pieces.

    Attributes:
        batch: The micro-batch of a stream, else 0.
        end: The lowest base above all ids of earlier micro-batches, in ticks.
        stretches: The stretches, ascending, with free pieces between them.
        before: The last pieces of stretches of earlier micro-batches. Pieces up to them need no room.
    """

    batch: int = 0
    end: int = 0
    stretches: tuple[Stretch, ...] = ()
    before: tuple[int, ...] = ()

    def start_batch(self, batch: int, span: int) -> PieceOrder:
        """Returns an empty order for the next micro-batch, above all ids reserved so far.

        Args:
            batch: The micro-batch; the caller checks that it is a later one.
            span: Number of ticks for the ids of a piece.
        """
        tops = (stretch.top + span for stretch in self.stretches)
        lasts = (stretch.last for stretch in self.stretches)
        return PieceOrder(batch, max((self.end, *tops)), (), tuple(sorted({*self.before, *lasts}))[-MAX_KEPT_PIECES:])


MAX_KEPT_PIECES = 200
"""Max pieces kept of earlier micro-batches, equal to the max partitions of a queue."""


class Timing(msgspec.Struct, frozen=True):
    """Bounds for the times of ids, in ticks.

    Attributes:
        soonest: Ids from here on are certainly written in time.
        latest: Ids below this are too late.
        span: Number of ticks for the ids of a piece.
        room: Number of ticks to leave for each skipped piece.
        most: Max distance above ``soonest`` up to which room is left.
    """

    soonest: int
    latest: int
    span: int
    room: int
    most: int


def reserve_piece(order: PieceOrder, piece: int, timing: Timing) -> tuple[PieceOrder, int]:
    """Reserves ids for a piece; returns the new order, and the base of the ids in ticks.

    A reserved piece keeps its ids if it is at an end of its stretch. A request for a reserved piece in between means
    that its own ledger entry was lost, so it gets the earliest possible ids. A new piece leaves room for each skipped
    one, but its ids stay below those of higher pieces if they can still be written in time.
    """
    below = [stretch for stretch in order.stretches if stretch.first <= piece]
    above = order.stretches[len(below) :]
    under = below[-1] if below else None
    if under is not None and piece <= under.last:
        return order, {under.first: under.base, under.last: under.top}.get(piece, timing.soonest)
    lowest = max(order.end, 0 if under is None else under.top + timing.span)
    soonest = max(lowest, timing.soonest)
    reached = [-1 if under is None else under.last, *(last for last in order.before if last <= piece)]
    gap = max(0, piece - max(reached) - 1)
    base = max(soonest, min(soonest + gap * timing.room, timing.soonest + timing.most))
    if above:
        ceiling = above[0].base - (above[0].first - piece) * timing.span
        base = min(base, ceiling) if ceiling >= max(lowest, timing.latest) else soonest
    stretches = _join_adjacent([*below, Stretch(piece, piece, base, base), *above])
    return msgspec.structs.replace(order, stretches=stretches), base


def _join_adjacent(stretches: list[Stretch]) -> tuple[Stretch, ...]:
    result = stretches[:1]
    for stretch in stretches[1:]:
        if stretch.first == result[-1].last + 1:
            result[-1] = Stretch(result[-1].first, stretch.last, result[-1].base, stretch.top)
        else:
            result.append(stretch)
    return tuple(result)
