"""Where the ids of numbered rows lie: in the order of the numbers, whichever task comes to which of them first.

Numbers are divided into pieces, whose ids are reserved when a task comes to them. What is reserved is one entry of the
ledger, as **stretches** of pieces that follow each other. A task whose numbers lie above some that no task has come to
yet leaves time for these::

    0 ── 1 ── 2 ·· 3 ·· 4 ·· 5 ·· 6 ── 7        pieces; 0 to 2 and 6 to 7 are reserved
    ├─ stretch ─┤    room for    ├ stretch ┤

A piece whose room is over gets ids as soon as possible: exactly once goes before the order.
"""

from __future__ import annotations

import msgspec


class Stretch(msgspec.Struct, frozen=True, array_like=True):
    """Pieces that are reserved, one after the other.

    Attributes:
        first, last: The lowest and the highest of them.
        base: Of the ids of ``first`` (ticks).
        top: Of the ids of ``last``.
    """

    first: int
    last: int
    base: int
    top: int


class PieceOrder(msgspec.Struct, frozen=True, array_like=True):
    """Reserved ids of a piece.

    Attributes:
        batch: Of a stream: the micro-batch.
        end: Ids from here on are above all of the micro-batch before (ticks).
        stretches: Ascending, with pieces between them.
        before: The last pieces of the stretches of the micro-batch before: nothing comes from there any more.
    """

    batch: int = 0
    end: int = 0
    stretches: tuple[Stretch, ...] = ()
    before: tuple[int, ...] = ()

    def following(self, batch: int, span: int) -> PieceOrder:
        """Returns what a later micro-batch starts with."""
        tops = (one.top + span for one in self.stretches)
        lasts = (one.last for one in self.stretches)
        return PieceOrder(batch, max((self.end, *tops)), (), tuple(sorted({*self.before, *lasts}))[-MAX_KEPT:])


MAX_KEPT = 200
"""Max pieces kept of earlier micro-batches: as many as the max of a queue's partitions."""


class Timing(msgspec.Struct, frozen=True):
    """When ids may lie (ticks).

    Attributes:
        soonest: Ids from here on are written in time for certain.
        latest: Ids below are too late.
        span: What the ids of a piece take.
        room: What is left for a piece that nobody has come to.
        most: No room is left that lies further than this above ``soonest``.
    """

    soonest: int
    latest: int
    span: int
    room: int
    most: int


def reserved(order: PieceOrder, piece: int, timing: Timing) -> tuple[PieceOrder, int]:
    """Reserves ids for a piece; returns the order then, and the base of the ids (ticks).

    A piece that is reserved keeps its ids if it is at an end of its stretch. Who asks for one in between has lost it
    together with the entry that it is for, and gets ids as soon as possible.
    """
    below = [one for one in order.stretches if one.first <= piece]
    above = order.stretches[len(below) :]
    under = below[-1] if below else None
    if under is not None and piece <= under.last:
        return order, {under.first: under.base, under.last: under.top}.get(piece, timing.soonest)
    lowest = max(order.end, 0 if under is None else under.top + timing.span)
    soonest = max(lowest, timing.soonest)
    known = [-1 if under is None else under.last, *(last for last in order.before if last <= piece)]
    gap = max(0, piece - max(known) - 1)
    base = max(soonest, min(soonest + gap * timing.room, timing.soonest + timing.most))
    if above:
        ceiling = above[0].base - (above[0].first - piece) * timing.span
        base = min(base, ceiling) if ceiling >= max(lowest, timing.latest) else soonest
    stretches = _joined([*below, Stretch(piece, piece, base, base), *above])
    return msgspec.structs.replace(order, stretches=stretches), base


def _joined(stretches: list[Stretch]) -> tuple[Stretch, ...]:
    found = stretches[:1]
    for one in stretches[1:]:
        if one.first == found[-1].last + 1:
            found[-1] = Stretch(found[-1].first, one.last, found[-1].base, one.top)
        else:
            found.append(one)
    return tuple(found)
