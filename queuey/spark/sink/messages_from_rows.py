"""Converts the rows of one chunk for one queue to messages without ids, and validates them.

A message depends only on its row, the queue, and the number of partitions when the writer began, so another attempt
writes the same messages.
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

from queuey.model import ids
from queuey.model.ids import EPOCH_TICKS, TICKS_PER_SECOND, Position
from queuey.model.messages import MAX_TTL, Meta
from queuey.model.partitions import MAX_RUNS, by_key
from queuey.spark.sink.arrow_rows import ColumnLayout, RowChunk, make_row_error
from queuey.storage.arrow_format import SCHEMA, Integers, Mask, MessageColumns, bytes_values, encode_typed_meta

T = TypeVar("T")

MAX_DEPTH = 200
"""Max depth of a JSON value, the same as in the service."""
_TICKS_PER_MICROSECOND = 10
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_KINDS = ("text", "bytes", "json")
_decode_json = msgspec.json.Decoder().decode


class Rules(msgspec.Struct, frozen=True):
    """Rules for all rows that a task writes to one queue.

    Attributes:
        partitions: Number of partitions when the writer began; rows without a partition are distributed among these.
        present_partitions: Present number of partitions; rows may name any of them.
        first: The partition of the first row without partition and key.
        ttl: TTL in seconds of rows without their own.
        max_body_bytes: Max bytes of a body; a null or empty one is refused.
        now: The store's clock in ticks, for the check of expiries.
    """

    partitions: int
    present_partitions: int
    first: int
    ttl: int
    max_body_bytes: int
    now: int


class MessageBuilder(msgspec.Struct):
    """Messages of one queue without ids, as columns with one item for each row.

    Attributes:
        indexes: Number of each row in its chunk.
        span: Index n gets the id ``base + n % span``, where ``base`` is reserved.
        order: Digest of the rows in their order; empty if each row has its own index.
        content: Digest of the rows in any order; empty if each row has its own index.
        partitions: Partition numbers, from 1.
        bodies: Bodies, binary.
        metas: Encoded metadata, as in ``queuey.storage.arrow_format``.
        ends: Expiries in ticks, or lifetimes where ``relative`` is set.
        relative: Mask of rows whose lifetime counts from the id on.
        positions: Ticks and low halves of ids, if rows have ids already.
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

    def make_messages(self, base: int, low: int) -> MessageColumns:
        ticks = self.indexes % self.span + base
        return self._build_messages(ticks, np.full(len(ticks), low), ticks)

    def make_messages_with_own_ids(self, now: int) -> MessageColumns:
        """Returns the messages with the ids in their rows. A TTL counts from now, or from the id if that is later."""
        ticks, low = self.positions or (self.indexes, self.indexes)
        return self._build_messages(ticks, low, np.maximum(ticks, now))

    def _build_messages(self, ticks: Integers, low: Integers, since: Integers) -> MessageColumns:
        ends = np.where(self.relative, since, 0) + self.ends
        columns = [pa.array(ticks), pa.array(low), pa.array(ends), self.bodies, self.metas]
        return MessageColumns(self.partitions, pa.RecordBatch.from_arrays(columns, schema=SCHEMA))

    def select_rows(self, chosen: Integers, indexes: Integers, span: int) -> MessageBuilder:
        """Returns the messages of the rows ``chosen``, with new ``indexes``.

        For rows that each have their own index, such as a sequence: they need no digests, and have no ids of their own.
        """
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


def group_by_queue(chunk: RowChunk, layout: ColumnLayout, queue: str | None) -> dict[str, Integers]:
    """Groups the rows of a chunk by queue: queue name -> numbers of rows in the chunk, ascending.

    Args:
        chunk: The rows.
        layout: The columns.
        queue: The target of all rows, if there is no column ``queue``.

    Raises:
        OptionError: A row has no queue.
    """
    if "queue" not in layout:
        return {queue or "": np.arange(chunk.count)}
    names, codes = _encode_distinct(chunk.columns["queue"])
    for code, name in enumerate(names):
        if not name and (codes == code).any():
            index = int(np.argmax(codes == code))
            raise make_row_error(chunk, index, "queue", "no queue is named, neither here nor by the option queue")
    ends = np.cumsum(np.bincount(codes, minlength=len(names)))
    parts = np.split(np.argsort(codes, kind="stable"), ends[:-1])
    return {name: part for name, part in zip(names, parts, strict=True) if len(part)}


def make_messages(chunk: RowChunk, layout: ColumnLayout, row_numbers: Integers, rules: Rules) -> MessageBuilder:
    """Converts some rows of a chunk to messages without ids.

    Args:
        chunk: The chunk.
        layout: The columns.
        row_numbers: Numbers of the rows in the chunk, ascending.
        rules: The rules for the queue.

    Raises:
        OptionError: A row is not valid; the message names its number and column. Do not write any row then.
    """
    work = _RowConverter(chunk, layout, row_numbers, rules)
    named = "id" in layout or "sequence" in layout
    order, content = (b"", b"") if named else _digest_rows(chunk, layout, row_numbers)
    ends, relative = work.convert_ends()
    return MessageBuilder(
        indexes=row_numbers,
        span=chunk.count,
        order=order,
        content=content,
        bodies=work.convert_bodies(),
        metas=work.convert_metas(),
        partitions=work.convert_partitions(),
        ends=ends,
        relative=relative,
        positions=work.convert_positions() if "id" in layout else None,
    )


def read_sequences(chunk: RowChunk, row_numbers: Integers) -> Integers:
    """Returns the column ``sequence`` of some rows.

    Raises:
        OptionError: A row has no number, or a negative one.
    """
    numbers = _integers(chunk.read_values("sequence", row_numbers), -1)
    if len(bad := np.flatnonzero(numbers < 0)):
        raise make_row_error(chunk, int(row_numbers[bad[0]]), "sequence", "every row needs a number from 0 on")
    return numbers


def _digest_rows(chunk: RowChunk, layout: ColumnLayout, indexes: Integers) -> tuple[bytes, bytes]:
    """Returns a digest of rows in their order, and one of rows in any order. Both cover the columns."""
    rows = chunk.encode_rows(indexes)
    digest = sha256(repr((sorted(chunk.columns), layout.text)).encode())
    order, content = digest.copy(), digest
    order.update(rows.buffers()[2].slice(0, pc.sum(pc.binary_length(rows)).as_py()))
    content.update(b"".join(sorted(bytes_values(rows))))
    return order.digest()[:16], content.digest()[:16]


def _encode_distinct(column: pa.Array) -> tuple[list[Any], Integers]:
    encoded = column.dictionary_encode()
    values = encoded.dictionary.to_pylist()
    return [*values, None], _integers(encoded.indices, len(values))


def _integers(column: pa.Array, null: int) -> Integers:
    values: Integers = column.cast(pa.int64()).fill_null(null).to_numpy()
    return values


class _RowConverter:
    """Validates and converts the columns of some rows of a chunk.

    Each method raises OptionError for the first row with an invalid value.
    """

    def __init__(self, chunk: RowChunk, layout: ColumnLayout, which: Integers, rules: Rules) -> None:
        self._chunk = chunk
        self._layout = layout
        self._which = which
        self._rules = rules
        self._bodies = chunk.read_values("value", which)

    def _column(self, name: str) -> pa.Array | None:
        return self._chunk.read_values(name, self._which) if name in self._layout else None

    def _refuse_rows(self, invalid: Mask, name: str, make_text: Callable[[int], str]) -> None:
        if invalid.any():
            place = int(np.argmax(invalid))
            raise make_row_error(self._chunk, int(self._which[place]), name, make_text(place))

    def _parse_cell(self, index: int, name: str, reader: Callable[[Any], T], value: object) -> T:
        try:
            return reader(value)
        except (ValueError, TypeError) as error:
            raise make_row_error(self._chunk, int(self._which[index]), name, str(error)) from error

    def convert_bodies(self) -> pa.Array:
        most = self._rules.max_body_bytes
        sizes = _integers(pc.binary_length(self._bodies), -1)
        self._refuse_rows(
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

    def convert_metas(self) -> pa.Array:
        text, json = self._body_kinds()
        types, type_codes = self._content_types()
        headers, header_codes = self._distinct_headers()
        codes = ((header_codes * len(types) + type_codes) << 2) | text << 1 | json
        distinct, places = np.unique(codes, return_inverse=True)
        metas = []
        for code in distinct.tolist():
            of_headers, of_types = divmod(code >> 2, len(types))
            meta = Meta(types[of_types], headers[of_headers], bool(code & 1))
            metas.append(encode_typed_meta(meta, text=bool(code & 2)))
        return pa.array(metas, pa.binary()).take(pa.array(places))

    def _body_kinds(self) -> tuple[Mask, Mask]:
        column = self._column("valueType")
        count = len(self._which)
        if column is None:
            return np.full(count, self._layout.text), np.zeros(count, bool)
        kinds, codes = _encode_distinct(column)
        allowed = np.array([kind is None or kind in _KINDS for kind in kinds])
        self._refuse_rows(
            ~allowed[codes], "valueType", lambda place: f"{kinds[codes[place]]!r} is not one of {', '.join(_KINDS)}"
        )
        text = np.array([self._layout.text if kind is None else kind != "bytes" for kind in kinds])[codes]
        json = np.array([kind == "json" for kind in kinds])[codes]
        self._check_texts(np.flatnonzero(text), np.flatnonzero(json))
        return text, json

    def _check_texts(self, texts: Integers, jsons: Integers) -> None:
        try:
            self._bodies.take(pa.array(texts)).cast(pa.string())
        except pa.ArrowInvalid:  # Arrow does not say which one it is.
            for place in texts.tolist():
                self._parse_cell(place, "value", _as_text, self._bodies[place].as_py())
        for place, body in zip(jsons.tolist(), bytes_values(self._bodies.take(pa.array(jsons))), strict=True):
            self._parse_cell(place, "value", _require_valid_json, body.decode())

    def _content_types(self) -> tuple[list[str | None], Integers]:
        column = self._column("contentType")
        if column is None:
            return [None], np.zeros(len(self._which), np.int64)
        types, codes = _encode_distinct(column)
        bad = np.array([bool(kind and _CONTROL.search(kind)) for kind in types])
        self._refuse_rows(bad[codes], "contentType", lambda _: "a content type cannot have control characters")
        return [kind or None for kind in types], codes

    def _distinct_headers(self) -> tuple[list[tuple[tuple[str, str], ...]], Integers]:
        column = self._column("headers")
        codes = np.zeros(len(self._which), np.int64)
        distinct: dict[tuple[tuple[str, str], ...], int] = {(): 0}
        if column is not None:
            for place in np.flatnonzero(_integers(pc.list_value_length(column), 0)).tolist():
                pairs = self._parse_cell(place, "headers", _parse_headers, column[place].as_py())
                codes[place] = distinct.setdefault(pairs, len(distinct))
        return list(distinct), codes

    def convert_partitions(self) -> Integers:
        """Returns a partition for each row: its own, else its key's, else one by its id, its sequence or its place.

        Refuses partitions that the queue does not have.
        """
        count, most = len(self._which), self._rules.present_partitions
        column, keys = self._column("partition"), self._column("key")
        partitions, assigned = np.zeros(count, np.int64), np.zeros(count, bool)
        if column is not None:
            partitions, assigned = _integers(column, 0).copy(), column.is_valid().to_numpy(zero_copy_only=False)
            self._refuse_rows(
                assigned & ((partitions < 1) | (partitions > most)),
                "partition",
                lambda place: f"{partitions[place]} is not one of the queue's (1 to {most})",
            )
        if keys is not None:
            keyed = keys.is_valid().to_numpy(zero_copy_only=False)
            keyed_places = np.flatnonzero(keyed & ~assigned)
            partitions[keyed_places] = self._partitions_by_key(keys, keyed_places)
            assigned = assigned | keyed
        if not assigned.all():
            partitions[~assigned] = self._choose_partitions()[~assigned]
        return partitions

    def _partitions_by_key(self, keys: pa.Array, places: Integers) -> Integers:
        values, codes = _encode_distinct(keys.take(pa.array(places)))
        firsts = places[np.unique(codes, return_index=True)[1]].tolist()
        partitions = [
            by_key(self._parse_cell(first, "key", _as_text, key), self._rules.partitions)
            for first, key in zip(firsts, values[:-1], strict=True)
        ]
        return np.array(partitions, np.int64)[codes]

    def _choose_partitions(self) -> Integers:
        rules, count = self._rules, len(self._which)
        if (own := self._column("id")) is not None:
            return np.array([by_key(str(value), rules.partitions) for value in own.to_pylist()])
        if (numbers := self._column("sequence")) is not None:
            return _integers(numbers, 0) % rules.partitions + 1
        # The same as ``queuey.model.partitions.spread``.
        runs = min(MAX_RUNS, rules.partitions, count)
        return (rules.first - 1 + np.arange(count) * runs // count) % rules.partitions + 1

    def convert_lifetimes(self) -> Integers:
        column = self._column("ttl")
        if column is None:
            return np.full(len(self._which), self._rules.ttl * TICKS_PER_SECOND)
        seconds = _integers(column, self._rules.ttl)
        self._refuse_rows(
            (seconds < 1) | (seconds > MAX_TTL),
            "ttl",
            lambda place: f"{seconds[place]} is not between 1 and {MAX_TTL} seconds",
        )
        return seconds * TICKS_PER_SECOND

    def convert_ends(self) -> tuple[Integers, Mask]:
        """Returns expiries or lifetimes in ticks, and a mask of the lifetimes, which count from the id on.

        A row whose ``expires`` is null has the default lifetime. An expiry in the past is allowed, and one more than
        ``MAX_TTL`` seconds ahead is refused.
        """
        column = self._column("expires")
        if column is None:
            return self.convert_lifetimes(), np.ones(len(self._which), bool)
        latest = (self._rules.now - EPOCH_TICKS) // _TICKS_PER_MICROSECOND + MAX_TTL * 1_000_000
        expires = np.maximum(_integers(column, 0), 0)  # Any time before 1970 means expired.
        self._refuse_rows(expires > latest, "expires", lambda _: f"more than {MAX_TTL} seconds ahead")
        unsaid = column.is_null().to_numpy(zero_copy_only=False)
        ends = np.where(unsaid, self._rules.ttl * TICKS_PER_SECOND, expires * _TICKS_PER_MICROSECOND + EPOCH_TICKS)
        return ends, unsaid

    def convert_positions(self) -> tuple[Integers, Integers]:
        texts = self._chunk.read_values("id", self._which).to_pylist()
        parsed = [self._parse_cell(place, "id", _parse_id, text) for place, text in enumerate(texts)]
        ticks, low = np.array(parsed, np.int64).reshape(-1, 2).T
        return np.ascontiguousarray(ticks), np.ascontiguousarray(low)


def _parse_id(text: str | None) -> Position:
    if text is None:
        raise ValueError("null: either all rows have an id or none")
    return ids.parse_id(text)


def _as_text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode()


def _parse_headers(pairs: Sequence[Mapping[str, str | bytes | None] | None] | None) -> tuple[tuple[str, str], ...]:
    headers = []
    for pair in pairs or ():
        name, value = (None, None) if pair is None else (pair["key"], pair["value"])
        if not isinstance(name, str) or _NAME.fullmatch(name) is None:
            raise ValueError(f"{name!r} is not a header name")
        if value is None:
            raise ValueError(f"the value of header {name} is null")
        text = _as_text(value)
        if _CONTROL.search(text):
            raise ValueError("a header cannot have control characters")
        headers.append((name.lower(), text))
    return tuple(headers)


def _require_valid_json(text: str) -> None:
    try:
        value = _decode_json(text)
    except RecursionError:
        raise ValueError(f"nested deeper than {MAX_DEPTH} levels") from None
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(MAX_DEPTH):
        inner = (node.values() if isinstance(node, dict) else node for node in level)
        level = [child for children in inner for child in children if isinstance(child, dict | list)]
    if level:
        raise ValueError(f"nested deeper than {MAX_DEPTH} levels")
