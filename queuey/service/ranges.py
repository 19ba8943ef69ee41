"""Range reads as pure functions: slices to read, and the answer made of their pages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec
from msgspec import structs

from queuey import ids
from queuey.ids import FIRST, LAST, LOW_MAX, LOW_MIN, Position
from queuey.messages import Message, Page, Slice

FRAME, FRAME_OF_PARTITION = 512, 128
"""Max bytes of an answer beside the messages of a queue, and for each partition that is read."""


class Mark(msgspec.Struct, frozen=True, gc=False):
    """A point in the order that a caller named: an id, or all ids of one instant.

    Attributes:
        start: The lowest position that belongs to it.
        end: The lowest position above it.
    """

    start: Position
    end: Position


Bound = Mark | Mapping[int, Mark] | None
"""One mark for every partition, or marks by partition, or none."""
OTHERS = 0
"""Number for all partitions that have no mark of their own."""


def mark_of(position: Position) -> Mark:
    return Mark(position, ids.following(position))


def parse_mark(text: str) -> Mark:
    """Reads an id or an instant.

    Raises:
        ValueError: It is neither.
    """
    ticks = ids.parse_instant(text) if len(text) != 32 else None  # noqa: PLR2004 - digits of an id
    if ticks is None:
        return mark_of(ids.parse_position(text))
    return Mark((ticks, LOW_MIN), ids.following((ticks, LOW_MAX)))


def parse_bound(text: str) -> Bound:
    """Reads an id, an instant, or a cursor: ``1:<id>,2:<id>``; ``<id>,2:<id>``: all but partition 2. Blank is None.

    Raises:
        ValueError: It is none of these.
    """
    text = text.strip()
    if not text:
        return None
    if ":" not in text:
        return parse_mark(text)
    marks: dict[int, Mark] = {}
    first, comma, others = text.partition(",")
    if ":" not in first and comma:
        marks[OTHERS] = parse_mark(first.strip())
        text = others
    for item in text.split(","):
        number, _, name = item.strip().partition(":")
        if not (number.isascii() and number.isdigit()) or len(number) > 3 or int(number) in marks:  # noqa: PLR2004
            raise ValueError(f"{item!r} does not name a partition, or names one again")
        marks[int(number)] = mark_of(ids.parse_position(name.strip()))
    return marks


class Range(msgspec.Struct, frozen=True, kw_only=True):
    """A read of one queue.

    Attributes:
        partitions: In the order of the answer; None: all.
        limit: Max messages per partition, or in all when merging.
        since: Start, inclusive. A cursor counts for each partition: ascending, one that it does not name is
            read from its beginning (it was added later); descending, not at all (it was exhausted).
        after, before, until: Bounds in time whatever the direction: above, below, at or below.
        delayed: Stay behind the queue's read delay.
        early: Include messages between that and now, after all others; ascending only.
        early_after: Of these only those above.
        due: False: include delayed messages that are not due.
        bodies: False: only ids are of interest; see :class:`~queuey.messages.Slice`.
        merge: One list in time order instead of partition after partition.
        looks_ahead: ``next`` of partitions without room is their first message.
    """

    partitions: tuple[int, ...] | None = (1,)
    limit: int = 100
    descending: bool = False
    since: Bound = None
    after: Bound = None
    before: Bound = None
    until: Bound = None
    delayed: bool = True
    early: bool = False
    early_after: Bound = None
    due: bool = True
    bodies: bool = True
    merge: bool = False
    looks_ahead: bool = False


class Reading(msgspec.Struct, gc=False):
    """The answer to a range read.

    Attributes:
        messages: In the order asked for.
        horizon: Ticks; nothing at or above it is in ``messages``.
        next: Per partition the position for the next ``since``, None when there is nothing further.
        more: Another read may give messages now.
        cursor_safe: False: a reader that keeps ``next`` may miss messages.
        early: Messages above the horizon, ascending, if asked for: each comes again in its place, unless it vanishes.
        early_more: There may be more of these.
    """

    messages: list[Message]
    horizon: int
    next: dict[int, Position | None]
    more: bool
    cursor_safe: bool = True
    early: Sequence[Message] = ()
    early_more: bool = False

    @property
    def count(self) -> int:
        return len(self.messages) + len(self.early)

    @property
    def cursor(self) -> str:
        """``next`` as one text that ``since`` takes; empty when every partition is exhausted."""
        return ",".join(f"{n}:{ids.to_hex(at)}" for n, at in self.next.items() if at is not None)


def _at(bound: Bound, partition: int) -> Mark | None:
    if bound is None or isinstance(bound, Mark):
        return bound
    return bound.get(partition, bound.get(OTHERS))


def slices(wanted: Range, partitions: Sequence[int], *, limit: int, max_bytes: int) -> list[Slice]:
    """Returns one slice for each partition that is not exhausted."""
    exhausted = wanted.descending and wanted.since is not None and not isinstance(wanted.since, Mark)
    found = []
    for partition in partitions:
        since = _at(wanted.since, partition)
        if since is None and exhausted:
            continue
        lower, upper = FIRST, LAST
        if since is not None:
            lower, upper = (FIRST, since.end) if wanted.descending else (since.start, LAST)
        if wanted.after is not None and (after := _at(wanted.after, partition)) is not None:
            lower = max(lower, after.end)
        if wanted.before is not None and (before := _at(wanted.before, partition)) is not None:
            upper = min(upper, before.start)
        if wanted.until is not None and (until := _at(wanted.until, partition)) is not None:
            upper = min(upper, until.end)
        found.append(
            Slice(
                partition,
                lower,
                upper,
                limit=limit,
                max_bytes=max_bytes,
                descending=wanted.descending,
                delayed=wanted.delayed,
                due=wanted.due,
                bodies=wanted.bodies,
            )
        )
    return found


def early_slices(wanted: Range, asked: Sequence[Slice], reading: Reading, max_bytes: int) -> list[Slice]:
    """Returns the slices above the horizon, after a reading that has reached it."""
    read = Counter(None if wanted.merge else message.partition for message in reading.messages)
    found = []
    for piece in asked:
        lower = max(piece.lower, (reading.horizon, LOW_MIN))
        if (mark := _at(wanted.early_after, piece.partition)) is not None:
            lower = max(lower, mark.end)
        if lower < piece.upper:
            limit = wanted.limit - read[None if wanted.merge else piece.partition]
            bounds = {"lower": lower, "limit": limit, "max_bytes": share(max_bytes, len(asked))}
            found.append(structs.replace(piece, **bounds, delayed=False, early=True))
    return found


def add_early(wanted: Range, asked: Sequence[Slice], pages: Sequence[Page], reading: Reading) -> None:
    """Adds the pages of :func:`early_slices` to a reading."""
    found = sorted(
        (message for page in pages for message in page.messages), key=lambda each: (each.position, each.partition)
    )
    most = asked[0].limit if wanted.merge else len(found)
    reading.early = found[:most]
    reading.early_more = len(found) > most or any(page.more for page in pages)


def nothing() -> Slice:
    """Returns a slice that holds no message: reading it only samples the horizon."""
    return Slice(1, FIRST, FIRST, limit=1)


def first_id(piece: Slice) -> Slice:
    """Returns the slice of a partition's first id, where there is no room for its message."""
    return structs.replace(piece, limit=1, bodies=False)


def is_put_off(page: Page) -> bool:
    """Returns whether there was no room to read a slice: its page begins where the slice does."""
    return page.more and not page.messages


def put_off(page: Page) -> Page:
    """Returns the page of :func:`first_id` without its message, with which the next page begins."""
    if not page.messages:
        return page
    return structs.replace(page, messages=[], next=page.messages[0].position, more=True)


def furthest_behind(asked: Sequence[Slice]) -> list[Slice]:
    """Orders slices that one page cannot hold: those put off last time come first."""
    return sorted(
        asked, key=lambda piece: piece.upper if piece.descending else piece.lower, reverse=asked[0].descending
    )


def one_after_another(asked: Sequence[Slice], pages: Sequence[Page], reading: Reading) -> None:
    """Adds pages to a reading, partition after partition."""
    for piece, page in zip(asked, pages, strict=True):
        reading.messages += page.messages
        reading.next[piece.partition] = page.next
        reading.horizon = max(reading.horizon, page.horizon)
        reading.more = reading.more or page.more


def share(total: int, parts: int) -> int:
    return max(1, total // max(1, parts))
