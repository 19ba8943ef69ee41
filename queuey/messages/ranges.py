"""Range reads as pure functions: the slices to read, and the answer built from their pages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from operator import attrgetter

import msgspec
from msgspec import structs
from msgspec.structs import replace

from queuey.model import ids
from queuey.model.ids import FIRST, LAST, LOW_MAX, LOW_MIN, Position
from queuey.model.messages import Message, Page, Slice, rendered_bytes
from queuey.model.time_parsing import parse_zoned

MAX_QUEUE_FRAME_BYTES, MAX_PARTITION_FRAME_BYTES = 512, 128
"""Max bytes of an answer besides messages: per queue, and per partition."""


MIN_MESSAGES_WITH_BODIES = 8
"""Min messages per partition in a page for which the first read includes bodies."""
_Key = tuple[int, int, int]
"""Sort key of a message: its position and partition, all negated if the list descends."""


class Mark(msgspec.Struct, frozen=True, gc=False):
    """A point in the order: an id, or all ids of one instant.

    Attributes:
        start: The lowest position in the mark.
        end: The lowest position above the mark.
    """

    start: Position
    end: Position


Bound = Mark | Mapping[int, Mark] | None
"""One mark for all partitions, marks by partition, or no bound."""
OTHER_PARTITIONS = 0
"""Key of the mark for partitions without one of their own."""


def make_mark(position: Position) -> Mark:
    return Mark(position, ids.following(position))


def parse_mark(text: str) -> Mark:
    """Parses an id or an instant."""
    ticks = ids.parse_instant(text) if len(text) != 32 else None  # noqa: PLR2004 - digits of an id
    if ticks is None:
        return make_mark(ids.parse_position(text))
    return Mark((ticks, LOW_MIN), ids.following((ticks, LOW_MAX)))


def parse_bound(text: str) -> Bound:
    """Parses an id, an instant, or a cursor such as ``1:<id>,2:<id>``. Returns None for blank text.

    An instant is in seconds since 1970, or ISO 8601 with a zone: ``2026-12-01T09:30:00Z``. In ``<id>,2:<id>`` the first
    id is for all partitions but 2.

    Raises:
        ValueError: The text is not an id, an instant or a cursor.
    """
    text = text.strip()
    if not text:
        return None
    if "T" in text:
        return parse_mark(parse_zoned(text.replace(" ", "+")))  # A query that is not encoded has a space for a plus.
    if ":" not in text:
        return parse_mark(text)
    marks: dict[int, Mark] = {}
    first, comma, others = text.partition(",")
    if ":" not in first and comma:
        marks[OTHER_PARTITIONS] = parse_mark(first.strip())
        text = others
    for item in text.split(","):
        number, _, name = item.strip().partition(":")
        if not (number.isascii() and number.isdigit()) or len(number) > 3 or int(number) in marks:  # noqa: PLR2004
            raise ValueError(f"{item!r} does not name a partition, or names one again")
        marks[int(number)] = make_mark(ids.parse_position(name.strip()))
    return marks


class RangeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A read of one queue.

    Attributes:
        partitions: Partitions in the order of the answer; None means all.
        limit: Max messages per partition, or in total when merging.
        since: Start, inclusive. A partition that a cursor does not name is read from the beginning if the read is
            ascending, because it was added later. A descending read skips it, because it was exhausted.
        after, before, until: Bounds in time for both directions: above, below, at or below.
        keeps_read_delay: Show messages when the queue's read delay is over.
        early: Include messages above the horizon, after all others; ascending only.
        early_after: Lower bound, exclusive, of the early messages.
        due: If false, include delayed messages that are not due.
        bodies: If false, only ids are needed; see :class:`~queuey.model.messages.Slice`.
        merge: Return one list in time order instead of partition after partition.
        looks_ahead: For a partition without room in the answer, ``next`` is the id of its first message.
    """

    partitions: tuple[int, ...] | None = (1,)
    limit: int = 100
    descending: bool = False
    since: Bound = None
    after: Bound = None
    before: Bound = None
    until: Bound = None
    keeps_read_delay: bool = True
    early: bool = False
    early_after: Bound = None
    due: bool = True
    bodies: bool = True
    merge: bool = False
    looks_ahead: bool = False


class RangeAnswer(msgspec.Struct, gc=False):
    """The answer to a range read.

    Attributes:
        messages: Messages in the requested order.
        horizon: Ticks; ``messages`` has nothing at or above it.
        next: The next ``since`` by partition; None if nothing is left.
        more: True if another read may return messages now.
        cursor_safe: False if a reader that continues from ``next`` may miss messages.
        early: Messages above the horizon, ascending, if requested. Each is returned again in order, unless it vanishes.
        early_more: True if there may be more early messages.
        partitions: Number of partitions of the queue if the request chose only some of them; otherwise 0.
    """

    messages: list[Message]
    horizon: int
    next: dict[int, Position | None]
    more: bool
    cursor_safe: bool = True
    early: Sequence[Message] = ()
    early_more: bool = False
    partitions: int = 0

    @property
    def cursor(self) -> str:
        """``next`` as text for ``since``; empty when every partition is exhausted."""
        return ",".join(f"{n}:{ids.to_hex(position)}" for n, position in self.next.items() if position is not None)


def _find_mark(bound: Bound, partition: int) -> Mark | None:
    if bound is None or isinstance(bound, Mark):
        return bound
    return bound.get(partition, bound.get(OTHER_PARTITIONS))


def make_slices(requested: RangeRequest, partitions: Sequence[int], max_bytes: int) -> list[Slice]:
    """Returns the slices of a range by partition, without partitions that a descending cursor does not name.

    They share ``max_bytes``, but each has at least 1.
    """
    skips_unnamed = requested.descending and requested.since is not None and not isinstance(requested.since, Mark)
    slices_to_read = []
    for partition in partitions:
        since = _find_mark(requested.since, partition)
        if since is None and skips_unnamed:
            continue
        lower, upper = FIRST, LAST
        if since is not None:
            lower, upper = (FIRST, since.end) if requested.descending else (since.start, LAST)
        if requested.after is not None and (after := _find_mark(requested.after, partition)) is not None:
            lower = max(lower, after.end)
        if requested.before is not None and (before := _find_mark(requested.before, partition)) is not None:
            upper = min(upper, before.start)
        if requested.until is not None and (until := _find_mark(requested.until, partition)) is not None:
            upper = min(upper, until.end)
        slices_to_read.append(
            Slice(
                partition,
                lower,
                upper,
                limit=requested.limit,
                max_bytes=max(1, max_bytes // len(partitions)),
                descending=requested.descending,
                keeps_read_delay=requested.keeps_read_delay,
                due=requested.due,
                bodies=requested.bodies,
            )
        )
    return slices_to_read


def make_early_slices(
    requested: RangeRequest, pieces: Sequence[Slice], answer: RangeAnswer, max_bytes: int
) -> list[Slice]:
    """Returns the slices above the horizon, after an answer that has reached it.

    Each slice gets the rest of the limit, which may be 0. Partitions without room between horizon and upper bound are
    left out.
    """
    read = Counter(None if requested.merge else message.partition for message in answer.messages)
    early = []
    for piece in pieces:
        lower = max(piece.lower, (answer.horizon, LOW_MIN))
        if (mark := _find_mark(requested.early_after, piece.partition)) is not None:
            lower = max(lower, mark.end)
        if lower < piece.upper:
            limit = requested.limit - read[None if requested.merge else piece.partition]
            bounds = {"lower": lower, "limit": limit, "max_bytes": divide_evenly(max_bytes, len(pieces))}
            early.append(structs.replace(piece, **bounds, keeps_read_delay=False, early=True))
    return early


def add_early(requested: RangeRequest, pieces: Sequence[Slice], pages: Sequence[Page], answer: RangeAnswer) -> None:
    """Adds early messages in time order; when merging, no more than the limit of the slices."""
    messages = sorted((message for page in pages for message in page.messages), key=lambda m: (m.position, m.partition))
    limit = pieces[0].limit if requested.merge else len(messages)
    answer.early = messages[:limit]
    answer.early_more = len(messages) > limit or any(page.more for page in pages)


def make_horizon_slice() -> Slice:
    return Slice(1, FIRST, FIRST, limit=1)


def make_first_id_slice(piece: Slice) -> Slice:
    """Returns the slice of a partition's first id, for when the answer has no room for the message."""
    return structs.replace(piece, limit=1, bodies=False)


def is_put_off(page: Page) -> bool:
    return page.more and not page.messages


def postpone_message(page: Page) -> Page:
    """Returns a page of :func:`make_first_id_slice` without its message, so that the next page begins with it."""
    if not page.messages:
        return page
    return structs.replace(page, messages=[], next=page.messages[0].position, more=True)


def sort_furthest_behind_first(pieces: Sequence[Slice]) -> list[Slice]:
    descending = pieces[0].descending
    return sorted(pieces, key=attrgetter("upper" if descending else "lower"), reverse=descending)


def append_pages(pieces: Sequence[Slice], pages: Mapping[int, Page], answer: RangeAnswer) -> None:
    for piece in pieces:
        page = pages[piece.partition]
        answer.messages += page.messages
        answer.next[piece.partition] = page.next
        answer.horizon = max(answer.horizon, page.horizon)
        answer.more = answer.more or page.more


def divide_evenly(total: int, parts: int) -> int:
    return max(1, total // max(1, parts))


class Merge:
    """Merges several partitions into one page in time order.

    :meth:`make_first_slices` and :meth:`make_further_slices` return slices to read; :meth:`add_pages` receives their
    pages.

    A page of a few partitions usually takes one round, which requests slightly more than each partition's share.
    Otherwise the ids are read first, because they are short. They show which messages belong to the page, and only the
    bodies of these messages are read. They are read in order, and in batches that fit if bodies are about as long as
    the previous ones. So a page costs about as much as a page of one partition, and its memory is bounded by its max
    bytes and one message.

    Args:
        max_bytes: The page ends with the message that reaches this size.
        certain: True if a message that a second read does not return is gone. False if that read may have asked
            another replica.
    """

    def __init__(self, requested_slices: Sequence[Slice], limit: int, max_bytes: int, *, certain: bool) -> None:
        self._asked = requested_slices
        self._sign = -1 if requested_slices[0].descending else 1
        self._limit = limit
        self._max_bytes = max_bytes
        self._certain = certain
        # Messages that were read, with their bytes in an answer; None where only the id was read.
        self._entries: dict[_Key, tuple[Message, int] | None] = {}
        self._order: list[_Key] = []
        # By partition: where the unread part begins, and its slice.
        self._unread: dict[int, tuple[_Key, Slice]] = {}
        self._next: dict[int, Position | None] = {}
        self._filling: list[_Key] = []
        self._spent = 0
        self._is_stuck = False
        self._horizon = 0

    def make_first_slices(self) -> list[Slice]:
        parts = len(self._asked)
        bodies = MIN_MESSAGES_WITH_BODIES * parts <= self._limit
        limit = 5 * self._limit // (4 * parts) + 1 if bodies else divide_evenly(2 * self._limit, parts)
        max_bytes = divide_evenly(self._max_bytes // 4, parts)
        return [replace(piece, limit=limit, max_bytes=max_bytes, bodies=bodies) for piece in self._asked]

    def make_further_slices(self) -> list[Slice]:
        """Returns the slices of the next read; none if the page is complete, or no more of it can be read."""
        page, size = self._page()
        weights = [entry[1] for entry in self._entries.values() if entry]
        count, held = len(weights), sum(weights)
        lacking = (self._max_bytes - size) * count // held if held else self._limit // MIN_MESSAGES_WITH_BODIES
        expected = min(self._limit, len(page) + lacking + 1)
        self._filling = []
        if self._is_stuck or len(page) == self._limit or size >= self._max_bytes:
            return []
        last = self._order[expected - 1] if len(self._order) >= expected else None
        unread = [piece for key, piece in self._unread.values() if last is None or key <= last]
        if unread:
            limit = divide_evenly(2 * expected, len(unread))
            return [replace(piece, limit=limit, bodies=False) for piece in unread]
        # Bodies in memory that do not follow the page are dropped to make room for bodies that do. They may be read
        # again later.
        spare = 3 * self._max_bytes // 2 - self._spent if page else self._max_bytes
        if spare <= 0:
            return []
        if held >= self._max_bytes:
            self._entries.update(dict.fromkeys(self._order[len(page) :]))
            room = min(self._max_bytes - size, spare)
        else:
            room = min(self._max_bytes - held, spare)
        # Bodies may be longer than the previous ones, so some room is left for the next read.
        fit = 3 * room * count // (4 * held) if held else lacking
        self._filling = [key for key in self._order[:expected] if self._entries[key] is None][: fit + 1]
        return self._body_slices(room if held else room // 4)

    def _body_slices(self, room: int) -> list[Slice]:
        keys: dict[int, list[_Key]] = {}
        for key in self._filling:
            keys.setdefault(abs(key[2]), []).append(key)
        slices = []
        for number, of_partition in keys.items():
            low, high = sorted((self._position(of_partition[0]), self._position(of_partition[-1])))
            max_bytes = divide_evenly(room * len(of_partition), len(self._filling))
            bounds = {"partition": number, "lower": low, "upper": ids.following(high)}
            slices.append(replace(self._asked[0], **bounds, limit=len(of_partition), max_bytes=max_bytes))
        return slices

    def add_pages(self, pieces: Sequence[Slice], pages: Sequence[Page]) -> None:
        """Adds the pages of slices that were returned before; drops messages whose bodies turn out to be gone."""
        self._horizon = self._horizon or pages[0].horizon
        for piece, page in zip(pieces, pages, strict=True):
            for message in page.messages:
                key = self._key(message.position, piece.partition)
                weight = rendered_bytes(message.body, message.meta) if piece.bodies else 0
                self._entries[key] = (message, weight) if piece.bodies else None
                self._spent += weight
            if not self._filling:
                self._set_unread(piece, page)
        if self._filling:
            self._drop_gone({piece.partition: page for piece, page in zip(pieces, pages, strict=True)})
            self._is_stuck = self._entries.get(self._filling[0], True) is None
        self._order = sorted(self._entries)

    def _set_unread(self, piece: Slice, page: Page) -> None:
        number, start = piece.partition, page.next
        self._next[number] = start
        self._unread.pop(number, None)
        if page.more and start is not None:
            bound = min(piece.upper, (self._horizon, LOW_MIN)) if piece.due else piece.upper
            lower, upper = (piece.lower, min(bound, ids.following(start))) if piece.descending else (start, bound)
            self._unread[number] = self._key(start, number), replace(piece, lower=lower, upper=upper)

    def _drop_gone(self, pages: dict[int, Page]) -> None:
        """If certain, drops messages whose id was read but that a later read passed without returning."""
        for key in self._filling if self._certain else ():
            number = abs(key[2])
            start = pages[number].next
            if self._entries[key] is None and (start is None or key < self._key(start, number)):
                del self._entries[key]

    def finish(self, answer: RangeAnswer) -> None:
        """Fills an answer with the page and the next position by partition. Other messages are read again later."""
        page, _ = self._page()
        answer.messages = page
        answer.horizon = self._horizon
        answer.next.update(self._next)
        remaining = self._order[len(page) :]
        for key in reversed(remaining):
            answer.next[abs(key[2])] = self._position(key)
        answer.more = bool(remaining or self._unread)

    def _page(self) -> tuple[list[Message], int]:
        fence = min([key for key, _ in self._unread.values()], default=None)
        page: list[Message] = []
        size = 0
        for key in self._order[: self._limit]:
            entry = self._entries[key]
            if entry is None or size >= self._max_bytes or (fence is not None and key >= fence):
                break
            page.append(entry[0])
            size += entry[1]
        return page, size

    def _key(self, position: Position, partition: int) -> _Key:
        return self._sign * position[0], self._sign * position[1], self._sign * partition

    def _position(self, key: _Key) -> Position:
        return self._sign * key[0], self._sign * key[1]
