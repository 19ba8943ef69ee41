"""The rows of one chunk that go to one queue, checked, as messages that only lack their ids.

Everything about a row is settled here by the row itself, the queue and the number of partitions that the writer began
with, so that another attempt writes the very same messages.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import repeat
from typing import Any, TypeVar

import msgspec

from queuey import ids
from queuey.ids import EPOCH_TICKS, TICKS_PER_SECOND, Position
from queuey.messages import MAX_TTL, Message, Meta
from queuey.partitions import by_key, spread
from queuey.spark.sink.arrow_rows import ColumnLayout, RowChunk, refuse

T = TypeVar("T")

DEEPEST = 200
"""Lists and objects of a JSON value that may lie inside each other; the service takes no deeper ones either."""
_TICKS_PER_MICROSECOND = 10
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_KINDS = ("text", "bytes", "json")
_decode_json = msgspec.json.Decoder().decode


class Rules(msgspec.Struct, frozen=True):
    """What holds for all rows that a task writes to one queue.

    Attributes:
        partitions: How many the queue had when the writer began: rows without a partition are divided among these.
        highest: How many it has now, that rows may name.
        first: The partition of the first row that leaves the choice.
        ttl: Seconds that messages live whose row does not say.
        most: Bytes of a body.
        now: The clock (ticks), which the ends of messages are judged by.
    """

    partitions: int
    highest: int
    first: int
    ttl: int
    most: int
    now: int


class MessageBuilder(msgspec.Struct):
    """Messages of one queue that lack their ids. All lists have one item for each row.

    Attributes:
        indexes: What is added to the base of the ids that are reserved: the row's number in its chunk.
        count: All indexes are below.
        order: Equal for equal rows in equal order only; empty where each row says itself which it is.
        content: Equal for the same rows in any order only; empty likewise.
        partitions: 1 to the queue's.
        bodies: As messages have them.
        metas: As messages have them.
        lifetimes: Ticks from the id on; None: ``ends`` counts.
        ends: Ticks.
        positions: Of rows that have ids already.
    """

    indexes: Sequence[int]
    count: int
    order: bytes
    content: bytes
    partitions: list[int]
    bodies: list[str | bytes]
    metas: list[Meta | None]
    lifetimes: list[int] | None
    ends: list[int] | None
    positions: list[Position] | None = None

    def __len__(self) -> int:
        return len(self.bodies)

    def messages(self, base: int, low: int) -> list[Message]:
        """Returns the messages with ids from ``base`` (ticks) on, all with this ``low``."""
        ticks = [base + index for index in self.indexes]
        ends = self.ends
        if ends is None:
            ends = [at + lives for at, lives in zip(ticks, self.lifetimes or (), strict=True)]
        return list(map(Message, ticks, repeat(low), self.partitions, ends, self.bodies, self.metas))

    def own(self, now: int) -> list[Message]:
        """Returns the messages with the ids that their rows give; a TTL counts from now or, if later, from the id."""
        positions = self.positions or []
        ends = self.ends
        if ends is None:
            ends = [max(now, at) + lives for (at, _), lives in zip(positions, self.lifetimes or (), strict=True)]
        ticks, lows = [at for at, _ in positions], [low for _, low in positions]
        return list(map(Message, ticks, lows, self.partitions, ends, self.bodies, self.metas))

    def part(self, chosen: Sequence[int], indexes: Sequence[int], count: int) -> MessageBuilder:
        """Returns some of the rows, by place in the lists, under other indexes; they say themselves which they are."""
        return MessageBuilder(
            indexes=indexes,
            count=count,
            order=b"",
            content=b"",
            partitions=[self.partitions[one] for one in chosen],
            bodies=[self.bodies[one] for one in chosen],
            metas=[self.metas[one] for one in chosen],
            lifetimes=None if self.lifetimes is None else [self.lifetimes[one] for one in chosen],
            ends=None if self.ends is None else [self.ends[one] for one in chosen],
        )


def by_queue(chunk: RowChunk, layout: ColumnLayout, queue: str | None) -> dict[str, Sequence[int]]:
    """Divides the rows of a chunk among queues; returns their numbers in the chunk by the queue's name.

    Args:
        chunk: The rows.
        layout: Their columns.
        queue: Where all rows go, if there is no column that says it.

    Raises:
        OptionError: A row says nothing.
    """
    if "queue" not in layout:
        return {queue or "": range(chunk.count)}
    found: dict[str, list[int]] = {}
    for index, name in enumerate(chunk.columns["queue"]):
        if not name:
            raise refuse(chunk, index, "queue", "no queue is named, neither here nor by the option queue")
        found.setdefault(name, []).append(index)
    return dict(found)


def drafts_of(chunk: RowChunk, layout: ColumnLayout, which: Sequence[int], rules: Rules) -> MessageBuilder:
    """Makes messages of some rows of a chunk.

    Args:
        chunk: The rows.
        layout: Their columns.
        which: Their numbers in the chunk, ascending.
        rules: What holds for the queue.

    Raises:
        OptionError: Names the row, its column and what is wrong with it; no other row may be written then.
    """
    work = _Work(chunk, layout, which, rules)
    bodies, kinds = work.bodies()
    own = work.column("id")
    order, content = (b"", b"") if own or "sequence" in layout else _digests(chunk, which)
    return MessageBuilder(
        indexes=which,
        count=chunk.count,
        order=order,
        content=content,
        partitions=work.partitions(),
        bodies=bodies,
        metas=work.metas(kinds),
        lifetimes=work.lifetimes() if "expires" not in layout else None,
        ends=work.ends() if "expires" in layout else None,
        positions=None if own is None else [work.read(index, "id", _id, id_) for index, id_ in own],
    )


def sequences(chunk: RowChunk, which: Sequence[int]) -> list[int]:
    """Returns the column ``sequence`` of some rows.

    Raises:
        OptionError: A row has none, or a negative one.
    """
    found = []
    for index in which:
        number = chunk.columns["sequence"][index]
        if number is None or number < 0:
            raise refuse(chunk, index, "sequence", "every row needs a number from 0 on")
        found.append(number)
    return found


def _digests(chunk: RowChunk, which: Sequence[int]) -> tuple[bytes, bytes]:
    rows = chunk.encoded(which)
    order = blake2b(b"".join(rows), digest_size=16).digest()
    return order, blake2b(b"".join(sorted(rows)), digest_size=16).digest()


class _Work:
    """The columns of some rows of a chunk, read one after the other."""

    def __init__(self, chunk: RowChunk, layout: ColumnLayout, which: Sequence[int], rules: Rules) -> None:
        self._chunk = chunk
        self._layout = layout
        self._which = which
        self._rules = rules

    def column(self, name: str) -> Iterator[tuple[int, Any]] | None:
        """Returns numbers of rows and their values in a column; None if there is no such column."""
        if name not in self._layout:
            return None
        return zip(self._which, self._chunk.values(name, self._which), strict=True)

    def read(self, index: int, name: str, reader: Callable[[Any], T], value: object) -> T:
        """Reads one value; an error names its row."""
        try:
            return reader(value)
        except (ValueError, TypeError) as error:
            raise refuse(self._chunk, index, name, str(error)) from error

    def bodies(self) -> tuple[list[str | bytes], list[str | None] | None]:
        """Returns the bodies and what they are: text, bytes or json; None: all are what the column's type says."""
        values: list[str | bytes] = self._chunk.values("value", self._which)
        kinds = self.column("valueType")
        self._check_bodies(values)
        if kinds is None:
            return values, None
        bodies: list[str | bytes] = []
        found: list[str | None] = []
        for value, (index, kind) in zip(values, kinds, strict=True):
            bodies.append(value if kind is None else self._body(index, kind, value))
            found.append(kind)
        return bodies, found

    def _body(self, index: int, kind: str, value: str | bytes) -> str | bytes:
        if kind not in _KINDS:
            raise refuse(self._chunk, index, "valueType", f"{kind!r} is none of {', '.join(_KINDS)}")
        if kind == "bytes":
            return self.read(index, "value", _as_bytes, value)
        text = self.read(index, "value", _as_text, value)
        if kind == "json":
            self.read(index, "value", _check_json, text)
        return text

    def _check_bodies(self, bodies: Sequence[str | bytes | None]) -> None:
        most = self._rules.most
        for index, body in zip(self._which, bodies, strict=True):
            if not body:
                raise refuse(self._chunk, index, "value", "null" if body is None else "a message cannot be empty")
            if len(body) * 4 > most and len(body.encode() if isinstance(body, str) else body) > most:
                raise refuse(self._chunk, index, "value", f"longer than the {most} bytes of max_body")

    def metas(self, kinds: list[str | None] | None) -> list[Meta | None]:
        """Returns what travels with the bodies."""
        if kinds is None and "contentType" not in self._layout and "headers" not in self._layout:
            return [None] * len(self._which)
        types, headers = self.column("contentType"), self.column("headers")
        found: list[Meta | None] = []
        for place, index in enumerate(self._which):
            kind = self.read(index, "contentType", _content_type, next(types)[1]) if types else None
            pairs = self.read(index, "headers", _headers, next(headers)[1]) if headers else ()
            json = kinds is not None and kinds[place] == "json"
            found.append(Meta(kind, pairs, json) if kind or pairs or json else None)
        return found

    def partitions(self) -> list[int]:
        """Returns a partition for each row: its own, its key's, or one that its place gives."""
        none: list[int | None] = [None] * len(self._which)
        numbers = self._given() if "partition" in self._layout else none
        keys = self.column("key")
        if keys is not None:
            numbers = [
                by_key(key if isinstance(key, str) else self.read(index, "key", _as_text, key), self._rules.partitions)
                if number is None and key is not None
                else number
                for number, (index, key) in zip(numbers, keys, strict=True)
            ]
        return self._spread(numbers)

    def _given(self) -> list[int | None]:
        numbers: list[int | None] = self._chunk.values("partition", self._which)
        most = self._rules.highest
        for index, number in zip(self._which, numbers, strict=True):
            if number is not None and not 0 < number <= most:
                raise refuse(self._chunk, index, "partition", f"{number} is not one of the queue's (1 to {most})")
        return numbers

    def _spread(self, numbers: list[int | None]) -> list[int]:
        found = [number for number in numbers if number is not None]
        if len(found) == len(numbers):
            return found
        rules = self._rules
        choices: Iterator[int]
        if (own := self.column("id")) is not None:
            choices = (by_key(str(value), rules.partitions) for _, value in own)
        elif (sequence := self.column("sequence")) is not None:
            choices = ((value or 0) % rules.partitions + 1 for _, value in sequence)
        else:
            choices = (spread(one, len(numbers), rules.first, rules.partitions) for one in range(len(numbers)))
        return [choice if number is None else number for number, choice in zip(numbers, choices, strict=True)]

    def lifetimes(self) -> list[int]:
        """Returns how long each message lives (ticks)."""
        usual = self._rules.ttl * TICKS_PER_SECOND
        column = self.column("ttl")
        if column is None:
            return [usual] * len(self._which)
        found = []
        for index, ttl in column:
            if ttl is not None and not 0 < ttl <= MAX_TTL:
                raise refuse(self._chunk, index, "ttl", f"{ttl} is not between 1 and {MAX_TTL} seconds")
            found.append(usual if ttl is None else ttl * TICKS_PER_SECOND)
        return found

    def ends(self) -> list[int]:
        """Returns when each message ends (ticks)."""
        latest = self._rules.now + MAX_TTL * TICKS_PER_SECOND
        found = []
        for index, micros in self.column("expires") or ():
            ends = None if micros is None else micros * _TICKS_PER_MICROSECOND + EPOCH_TICKS
            if ends is None or ends > latest:
                raise refuse(self._chunk, index, "expires", f"null, or more than {MAX_TTL} seconds ahead")
            found.append(ends)
        return found


def _id(text: str | None) -> Position:
    if text is None:
        raise ValueError("null: every row needs an id, or none has one")
    return ids.parse_id(text)


def _as_text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode()


def _as_bytes(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode()


def _content_type(value: str | None) -> str | None:
    if value and _CONTROL.search(value):
        raise ValueError("a content type has no control characters")
    return value or None


def _headers(pairs: Sequence[Mapping[str, str | bytes | None] | None] | None) -> tuple[tuple[str, str], ...]:
    found = []
    for pair in pairs or ():
        name, value = (None, None) if pair is None else (pair["key"], pair["value"])
        if not isinstance(name, str) or _NAME.fullmatch(name) is None:
            raise ValueError(f"{name!r} is not a header name")
        if value is None:
            raise ValueError(f"the value of header {name} is null")
        text = _as_text(value)
        if _CONTROL.search(text):
            raise ValueError("a header has no control characters")
        found.append((name.lower(), text))
    return tuple(found)


def _check_json(text: str) -> None:
    try:
        value = _decode_json(text)
    except RecursionError:
        raise ValueError(f"nested deeper than {DEEPEST} levels") from None
    if text.count("[") + text.count("{") <= DEEPEST:
        return
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(DEEPEST):
        inner = (one.values() if isinstance(one, dict) else one for one in level)
        level = [one for some in inner for one in some if isinstance(one, dict | list)]
    if level:
        raise ValueError(f"nested deeper than {DEEPEST} levels")
