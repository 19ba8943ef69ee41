"""The rows of one chunk that go to one queue, checked, as messages that only lack their ids.

Everything about a row is settled here by the row itself, the queue and the number of partitions that the writer began
with, so that another attempt writes the very same messages.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import Any, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from queuey import ids
from queuey.ids import EPOCH_TICKS, TICKS_PER_SECOND, Position
from queuey.messages import MAX_TTL, Meta
from queuey.partitions import MOST_RUNS, by_key
from queuey.spark.sink.arrow_rows import ColumnLayout, RowChunk, refuse
from queuey.storage.columns import SCHEMA, Integers, Mask, MessageColumns, bytes_of, meta_of

T = TypeVar("T")

MAX_DEPTH = 200
"""Max depth of a JSON value, the same as in the service."""
_TICKS_PER_MICROSECOND = 10
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_KINDS = ("text", "bytes", "json")
_decode_json = msgspec.json.Decoder().decode


class Rules(msgspec.Struct, frozen=True):
    """Options for all rows that a task writes to one queue.

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
    """Messages of one queue that lack their ids, as columns: each has one item for each row.

    Attributes:
        indexes: Which row of its chunk each row is.
        span: Index n has the id ``base + n % span``, where ``base`` is reserved.
        order: Equal for equal rows in equal order only; empty where each row says itself which it is.
        content: Equal for the same rows in any order only; empty likewise.
        partitions: 1 to the queue's.
        bodies: Binary.
        metas: As ``queuey.storage.columns`` has them.
        ends: Ticks.
        relative: Which ends count from the id on.
        positions: Of rows that have ids already: ticks and low halves.
    """

    indexes: Integers
    span: int
    order: bytes
    content: bytes
    partitions: Integers
    bodies: pa.Array
    metas: pa.Array
    ends: Integers
    relative: Mask
    positions: tuple[Integers, Integers] | None = None

    def __len__(self) -> int:
        return len(self.indexes)

    def messages(self, base: int, low: int) -> MessageColumns:
        """Returns the messages with ids from ``base`` (ticks) on, all with this ``low``."""
        ticks = self.indexes % self.span + base
        return self._messages(ticks, np.full(len(ticks), low), ticks)

    def own(self, now: int) -> MessageColumns:
        """Returns the messages with the ids that their rows give; a TTL counts from now or, if later, from the id."""
        ticks, low = self.positions or (self.indexes, self.indexes)
        return self._messages(ticks, low, np.maximum(ticks, now))

    def _messages(self, ticks: Integers, low: Integers, since: Integers) -> MessageColumns:
        ends = np.where(self.relative, since, 0) + self.ends
        columns = [pa.array(ticks), pa.array(low), pa.array(ends), self.bodies, self.metas]
        return MessageColumns(self.partitions, pa.RecordBatch.from_arrays(columns, schema=SCHEMA))

    def part(self, chosen: Integers, indexes: Integers, span: int) -> MessageBuilder:
        """Returns some of the rows, by place, under other indexes; they say themselves which they are."""
        places = pa.array(chosen)
        return MessageBuilder(
            indexes=indexes,
            span=span,
            order=b"",
            content=b"",
            partitions=self.partitions[chosen],
            bodies=self.bodies.take(places),
            metas=self.metas.take(places),
            ends=self.ends[chosen],
            relative=self.relative[chosen],
        )


def by_queue(chunk: RowChunk, layout: ColumnLayout, queue: str | None) -> dict[str, Integers]:
    """Divides the rows of a chunk among queues; returns their numbers in the chunk, ascending, by the queue's name.

    Args:
        chunk: The rows.
        layout: Their columns.
        queue: Where all rows go, if there is no column that says it.

    Raises:
        OptionError: A row says nothing.
    """
    if "queue" not in layout:
        return {queue or "": np.arange(chunk.count)}
    names, codes = _coded(chunk.columns["queue"])
    for code, name in enumerate(names):
        if not name and (codes == code).any():
            index = int(np.argmax(codes == code))
            raise refuse(chunk, index, "queue", "no queue is named, neither here nor by the option queue")
    ends = np.cumsum(np.bincount(codes, minlength=len(names)))
    parts = np.split(np.argsort(codes, kind="stable"), ends[:-1])
    return {name: part for name, part in zip(names, parts, strict=True) if len(part)}


def drafts_of(chunk: RowChunk, layout: ColumnLayout, which: Integers, rules: Rules) -> MessageBuilder:
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
    named = "id" in layout or "sequence" in layout
    order, content = (b"", b"") if named else _digests(chunk, layout, which)
    ends, relative = work.ends()
    return MessageBuilder(
        indexes=which,
        span=chunk.count,
        order=order,
        content=content,
        bodies=work.bodies(),
        metas=work.metas(),
        partitions=work.partitions(),
        ends=ends,
        relative=relative,
        positions=work.positions() if "id" in layout else None,
    )


def sequences(chunk: RowChunk, which: Integers) -> Integers:
    """Returns the column ``sequence`` of some rows.

    Raises:
        OptionError: A row has none, or a negative one.
    """
    numbers = _integers(chunk.values("sequence", which), -1)
    if len(bad := np.flatnonzero(numbers < 0)):
        raise refuse(chunk, int(which[bad[0]]), "sequence", "every row needs a number from 0 on")
    return numbers


def _digests(chunk: RowChunk, layout: ColumnLayout, which: Integers) -> tuple[bytes, bytes]:
    rows = chunk.encoded(which)
    digest = sha256(repr((sorted(chunk.columns), layout.text)).encode())
    order, content = digest.copy(), digest
    order.update(rows.buffers()[2].slice(0, pc.sum(pc.binary_length(rows)).as_py()))
    content.update(b"".join(sorted(bytes_of(rows))))
    return order.digest()[:16], content.digest()[:16]


def _coded(column: pa.Array) -> tuple[list[Any], Integers]:
    """Returns the distinct values of a column, None as the last one, and for each row the place of its value there."""
    encoded = column.dictionary_encode()
    values = encoded.dictionary.to_pylist()
    return [*values, None], _integers(encoded.indices, len(values))


def _integers(column: pa.Array, null: int) -> Integers:
    """Returns the values of a column of integers, with something in the place of nulls."""
    found: Integers = column.cast(pa.int64()).fill_null(null).to_numpy()
    return found


class _Work:
    """The columns of some rows of a chunk, read one after the other."""

    def __init__(self, chunk: RowChunk, layout: ColumnLayout, which: Integers, rules: Rules) -> None:
        self._chunk = chunk
        self._layout = layout
        self._which = which
        self._rules = rules
        self._bodies = chunk.values("value", which)

    def _column(self, name: str) -> pa.Array | None:
        return self._chunk.values(name, self._which) if name in self._layout else None

    def _refuse(self, wrong: Mask, name: str, say: Callable[[int], str]) -> None:
        """Refuses the first of some rows.

        Args:
            wrong: Which they are.
            name: The column.
            say: Says what is wrong with a row, given its place.
        """
        if wrong.any():
            place = int(np.argmax(wrong))
            raise refuse(self._chunk, int(self._which[place]), name, say(place))

    def _read(self, place: int, name: str, reader: Callable[[Any], T], value: object) -> T:
        """Reads one value; an error names its row."""
        try:
            return reader(value)
        except (ValueError, TypeError) as error:
            raise refuse(self._chunk, int(self._which[place]), name, str(error)) from error

    def bodies(self) -> pa.Array:
        """Returns the bodies, checked."""
        most = self._rules.most
        sizes = _integers(pc.binary_length(self._bodies), -1)
        self._refuse(
            (sizes < 1) | (sizes > most),
            "value",
            lambda place: (
                "null"
                if sizes[place] < 0
                else f"longer than the {most} bytes of max_body"
                if sizes[place]
                else "a message cannot be empty"
            ),
        )
        return self._bodies

    def metas(self) -> pa.Array:
        """Returns what travels with the bodies; bodies that their rows call text or JSON are checked to be so."""
        text, json = self._kinds()
        types, type_codes = self._types()
        headers, header_codes = self._headers()
        codes = ((header_codes * len(types) + type_codes) << 2) | text << 1 | json
        distinct, places = np.unique(codes, return_inverse=True)
        metas = []
        for code in distinct.tolist():
            of_headers, of_types = divmod(code >> 2, len(types))
            meta = Meta(types[of_types], headers[of_headers], bool(code & 1))
            metas.append(meta_of(meta, text=bool(code & 2)))
        return pa.array(metas, pa.binary()).take(pa.array(places))

    def _kinds(self) -> tuple[Mask, Mask]:
        """Returns which bodies are text, JSON included, and which are JSON."""
        column = self._column("valueType")
        count = len(self._which)
        if column is None:
            return np.full(count, self._layout.text), np.zeros(count, bool)
        kinds, codes = _coded(column)
        known = np.array([kind is None or kind in _KINDS for kind in kinds])
        self._refuse(
            ~known[codes], "valueType", lambda place: f"{kinds[codes[place]]!r} is none of {', '.join(_KINDS)}"
        )
        text = np.array([self._layout.text if kind is None else kind != "bytes" for kind in kinds])[codes]
        json = np.array([kind == "json" for kind in kinds])[codes]
        self._check_texts(np.flatnonzero(text), np.flatnonzero(json))
        return text, json

    def _check_texts(self, texts: Integers, jsons: Integers) -> None:
        try:
            self._bodies.take(pa.array(texts)).cast(pa.string())
        except pa.ArrowInvalid:  # Which one it is says Python.
            for place in texts.tolist():
                self._read(place, "value", _as_text, self._bodies[place].as_py())
        for place, body in zip(jsons.tolist(), bytes_of(self._bodies.take(pa.array(jsons))), strict=True):
            self._read(place, "value", _check_json, body.decode())

    def _types(self) -> tuple[list[str | None], Integers]:
        """Returns distinct content types, and which of them each row has."""
        column = self._column("contentType")
        if column is None:
            return [None], np.zeros(len(self._which), np.int64)
        types, codes = _coded(column)
        bad = np.array([bool(kind and _CONTROL.search(kind)) for kind in types])
        self._refuse(bad[codes], "contentType", lambda _: "a content type has no control characters")
        return [kind or None for kind in types], codes

    def _headers(self) -> tuple[list[tuple[tuple[str, str], ...]], Integers]:
        """Returns distinct headers, and which of them each row has."""
        column = self._column("headers")
        codes = np.zeros(len(self._which), np.int64)
        found: dict[tuple[tuple[str, str], ...], int] = {(): 0}
        if column is not None:
            for place in np.flatnonzero(_integers(pc.list_value_length(column), 0)).tolist():
                pairs = self._read(place, "headers", _headers, column[place].as_py())
                codes[place] = found.setdefault(pairs, len(found))
        return list(found), codes

    def partitions(self) -> Integers:
        """Returns a partition for each row: its own, its key's, or one that its place gives."""
        count, most = len(self._which), self._rules.highest
        column, keys = self._column("partition"), self._column("key")
        found, known = np.zeros(count, np.int64), np.zeros(count, bool)
        if column is not None:
            found, known = _integers(column, 0).copy(), column.is_valid().to_numpy(zero_copy_only=False)
            self._refuse(
                known & ((found < 1) | (found > most)),
                "partition",
                lambda place: f"{found[place]} is not one of the queue's (1 to {most})",
            )
        if keys is not None:
            keyed = keys.is_valid().to_numpy(zero_copy_only=False)
            left = np.flatnonzero(keyed & ~known)
            found[left] = self._by_keys(keys, left)
            known = known | keyed
        if not known.all():
            found[~known] = self._chosen()[~known]
        return found

    def _by_keys(self, keys: pa.Array, places: Integers) -> Integers:
        values, codes = _coded(keys.take(pa.array(places)))
        firsts = places[np.unique(codes, return_index=True)[1]].tolist()
        found = [
            by_key(self._read(first, "key", _as_text, key), self._rules.partitions)
            for first, key in zip(firsts, values[:-1], strict=True)
        ]
        return np.array(found, np.int64)[codes]

    def _chosen(self) -> Integers:
        """Returns the partitions of rows that leave the choice."""
        rules, count = self._rules, len(self._which)
        if (own := self._column("id")) is not None:
            return np.array([by_key(str(value), rules.partitions) for value in own.to_pylist()])
        if (numbers := self._column("sequence")) is not None:
            return _integers(numbers, 0) % rules.partitions + 1
        # As ``queuey.partitions.spread`` does it.
        runs = min(MOST_RUNS, rules.partitions, count)
        return (rules.first - 1 + np.arange(count) * runs // count) % rules.partitions + 1

    def lifetimes(self) -> Integers:
        """Returns how long each message lives (ticks)."""
        column = self._column("ttl")
        if column is None:
            return np.full(len(self._which), self._rules.ttl * TICKS_PER_SECOND)
        found = _integers(column, self._rules.ttl)
        self._refuse(
            (found < 1) | (found > MAX_TTL),
            "ttl",
            lambda place: f"{found[place]} is not between 1 and {MAX_TTL} seconds",
        )
        return found * TICKS_PER_SECOND

    def ends(self) -> tuple[Integers, Mask]:
        """Returns when each message ends (ticks), and for which that counts from the id on."""
        column = self._column("expires")
        if column is None:
            return self.lifetimes(), np.ones(len(self._which), bool)
        latest = (self._rules.now - EPOCH_TICKS) // _TICKS_PER_MICROSECOND + MAX_TTL * 1_000_000
        found = np.maximum(_integers(column, 0), 0)  # What ended before 1970 has ended.
        self._refuse(found > latest, "expires", lambda _: f"more than {MAX_TTL} seconds ahead")
        unsaid = column.is_null().to_numpy(zero_copy_only=False)
        ends = np.where(unsaid, self._rules.ttl * TICKS_PER_SECOND, found * _TICKS_PER_MICROSECOND + EPOCH_TICKS)
        return ends, unsaid

    def positions(self) -> tuple[Integers, Integers]:
        """Returns the ids that rows have: ticks and low halves."""
        texts = self._chunk.values("id", self._which).to_pylist()
        found = [self._read(place, "id", _id, text) for place, text in enumerate(texts)]
        ticks, low = np.array(found, np.int64).reshape(-1, 2).T
        return np.ascontiguousarray(ticks), np.ascontiguousarray(low)


def _id(text: str | None) -> Position:
    if text is None:
        raise ValueError("null: every row needs an id, or none has one")
    return ids.parse_id(text)


def _as_text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode()


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
        raise ValueError(f"nested deeper than {MAX_DEPTH} levels") from None
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(MAX_DEPTH):
        inner = (one.values() if isinstance(one, dict) else one for one in level)
        level = [one for some in inner for one in some if isinstance(one, dict | list)]
    if level:
        raise ValueError(f"nested deeper than {MAX_DEPTH} levels")
