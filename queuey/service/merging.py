"""Reads of several partitions as one list in time order.

A page of a few partitions mostly comes in one round, which asks each for somewhat more than its part of the page. For
everything else the ids come first, which are short. They show which messages the page has, and only the bodies of these
are read: in their order, and as many at a time as fit if they are about as long as those before. So a page costs about
as much as a page of one partition, and takes no more memory than the bytes that it may have and one message.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from queuey import ids
from queuey.ids import LOW_MIN, Position
from queuey.messages import Message, Page, Slice, rendered_bytes
from queuey.service.ranges import Reading, share

SEVERAL = 8
"""Min messages of each partition in a page for which bodies are read at once."""
_Key = tuple[int, int, int]
"""Place of a message in the list: its position and partition, all negative if the list descends."""


class Merge:
    """One page of several partitions: :meth:`first` and :meth:`further` return slices, :meth:`take` gets their pages.

    Args:
        asked: The slices of the partitions, all in one direction.
        limit: Max messages of the page.
        max_bytes: The page ends with the message that reaches these bytes.
        certain: A message that a second read does not show is gone. False: perhaps that read asked another replica.
    """

    def __init__(self, asked: Sequence[Slice], limit: int, max_bytes: int, *, certain: bool) -> None:
        self._asked = asked
        self._sign = -1 if asked[0].descending else 1
        self._limit = limit
        self._max_bytes = max_bytes
        self._certain = certain
        # All that is known: messages with their bytes in an answer, None where only the id was read.
        self._found: dict[_Key, tuple[Message, int] | None] = {}
        self._order: list[_Key] = []
        # By partition: where what is not known yet begins, and its slice.
        self._unread: dict[int, tuple[_Key, Slice]] = {}
        self._next: dict[int, Position | None] = {}
        self._filling: list[_Key] = []
        self._spent = 0
        self._is_stuck = False
        self._horizon = 0

    def first(self) -> list[Slice]:
        parts = len(self._asked)
        bodies = SEVERAL * parts <= self._limit
        limit = 5 * self._limit // (4 * parts) + 1 if bodies else share(2 * self._limit, parts)
        max_bytes = share(self._max_bytes // 4, parts)
        return [replace(piece, limit=limit, max_bytes=max_bytes, bodies=bodies) for piece in self._asked]

    def further(self) -> list[Slice]:
        """Returns the slices of the next read; none if the page is complete."""
        page, size = self._page()
        weights = [known[1] for known in self._found.values() if known]
        count, held = len(weights), sum(weights)
        lacking = (self._max_bytes - size) * count // held if held else self._limit // SEVERAL
        expected = min(self._limit, len(page) + lacking + 1)
        self._filling = []
        if self._is_stuck or len(page) == self._limit or size >= self._max_bytes:
            return []
        last = self._order[expected - 1] if len(self._order) >= expected else None
        behind = [piece for key, piece in self._unread.values() if last is None or key <= last]
        if behind:
            limit = share(2 * expected, len(behind))
            return [replace(piece, limit=limit, bodies=False) for piece in behind]
        # Bodies in memory that do not follow the page are dropped for those that do, and may be read again for it.
        spare = 3 * self._max_bytes // 2 - self._spent if page else self._max_bytes
        if spare <= 0:
            return []
        if held >= self._max_bytes:
            self._found.update(dict.fromkeys(self._order[len(page) :]))
            room = min(self._max_bytes - size, spare)
        else:
            room = min(self._max_bytes - held, spare)
        # Bodies may be longer than those before, so some room is left; it serves the next read.
        fit = 3 * room * count // (4 * held) if held else lacking
        self._filling = [key for key in self._order[:expected] if self._found[key] is None][: fit + 1]
        return self._bodies(room if held else room // 4)

    def _bodies(self, room: int) -> list[Slice]:
        """Returns slices for the messages whose bodies are missing, that of the first one first."""
        keys: dict[int, list[_Key]] = {}
        for key in self._filling:
            keys.setdefault(abs(key[2]), []).append(key)
        slices = []
        for number, some in keys.items():
            low, high = sorted((self._position(some[0]), self._position(some[-1])))
            max_bytes = share(room * len(some), len(self._filling))
            bounds = {"partition": number, "lower": low, "upper": ids.following(high)}
            slices.append(replace(self._asked[0], **bounds, limit=len(some), max_bytes=max_bytes))
        return slices

    def take(self, asked: Sequence[Slice], pages: Sequence[Page]) -> None:
        self._horizon = self._horizon or pages[0].horizon
        for piece, page in zip(asked, pages, strict=True):
            for message in page.messages:
                key = self._key(message.position, piece.partition)
                weight = rendered_bytes(message.body, message.meta) if piece.bodies else 0
                self._found[key] = (message, weight) if piece.bodies else None
                self._spent += weight
            if not self._filling:
                self._read_up_to(piece, page)
        if self._filling:
            self._forget({piece.partition: page for piece, page in zip(asked, pages, strict=True)})
            self._is_stuck = self._found.get(self._filling[0], True) is None
        self._order = sorted(self._found)

    def _read_up_to(self, piece: Slice, page: Page) -> None:
        """Records how far a partition is known. All reads have the horizon of the first."""
        number, at = piece.partition, page.next
        self._next[number] = at
        self._unread.pop(number, None)
        if page.more and at is not None:
            bound = min(piece.upper, (self._horizon, LOW_MIN)) if piece.due else piece.upper
            lower, upper = (piece.lower, min(bound, ids.following(at))) if piece.descending else (at, bound)
            self._unread[number] = self._key(at, number), replace(piece, lower=lower, upper=upper)

    def _forget(self, pages: dict[int, Page]) -> None:
        for key in self._filling if self._certain else ():
            number = abs(key[2])
            at = pages[number].next
            if self._found[key] is None and (at is None or key < self._key(at, number)):
                del self._found[key]

    def finish(self, reading: Reading) -> None:
        """Fills the reading. Messages that are not in it are read again next time."""
        page, _ = self._page()
        reading.messages = page
        reading.horizon = self._horizon
        reading.next.update(self._next)
        left = self._order[len(page) :]
        for key in reversed(left):
            reading.next[abs(key[2])] = self._position(key)
        reading.more = bool(left or self._unread)

    def _page(self) -> tuple[list[Message], int]:
        """Returns the messages of the page and their bytes.

        The page ends where nothing is known of some partition: it may hold a message that belongs there.
        """
        fence = min([key for key, _ in self._unread.values()], default=None)
        page: list[Message] = []
        size = 0
        for key in self._order[: self._limit]:
            known = self._found[key]
            if known is None or size >= self._max_bytes or (fence is not None and key >= fence):
                break
            page.append(known[0])
            size += known[1]
        return page, size

    def _key(self, position: Position, partition: int) -> _Key:
        return self._sign * position[0], self._sign * position[1], self._sign * partition

    def _position(self, key: _Key) -> Position:
        return self._sign * key[0], self._sign * key[1]
