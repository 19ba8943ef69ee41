"""Checks JSON of callers without building its objects, which would take thirty times the memory."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache
from itertools import accumulate

import msgspec

from queuey.web.validators import JSON_ERRORS, BadField, decode_any

MAX_DEPTH = 200
"""Max nesting of a JSON body, so that readers in any language can parse it."""
UNREADABLE_TEXT = "Is not JSON that every reader can parse"
BLOCK_BYTES = 64 * 1024
_DEPTH_CHANGES = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_NO_BRACKETS = bytes(set(range(256)) - _DEPTH_CHANGES.keys())
_PERHAPS_TOO_LARGE = re.compile(rb"(?<![0-9.])(?:[0-9.]{200,}(?:[eE][+-]?[0-9]+)?|[0-9.]+[eE]\+?[0-9]{3,})")
"""Numbers that decoders may refuse: with very many digits, or a large exponent."""
_check_syntax = msgspec.json.Decoder(msgspec.Raw).decode
"""Checks the syntax of JSON, but not that strings are UTF-8 and numbers small enough."""


def read_value(raw: bytes) -> tuple[str, bool]:
    """Returns the text of a JSON string, or any other value as it is written, and whether it is such another value.

    Raises:
        BadField: The value is not JSON that every reader can parse.
    """
    if not raw.lstrip(b" \t\r\n").startswith(b'"'):
        return check_value(raw), True
    try:
        return decode_any(raw), False
    except JSON_ERRORS:
        raise BadField(UNREADABLE_TEXT) from None


def check_value(raw: bytes, *, block: int = BLOCK_BYTES) -> str:
    """Checks a JSON value that is stored as it is; returns its text.

    Args:
        raw: The value.
        block: Bytes of a longer value that are checked together.

    Raises:
        BadField: The value is not JSON that every reader can parse.
    """
    try:
        text = raw.decode()
        if small := len(raw) <= block:
            decode_any(raw)  # faster than the checks below
        else:
            _check_syntax(raw)
        if not small or raw.count(b"[") + raw.count(b"{") > MAX_DEPTH:
            _check_parts(raw, block)
    except JSON_ERRORS:
        raise BadField(UNREADABLE_TEXT) from None
    return text


def _check_parts(raw: bytes, block: int) -> None:
    """Raises if a value nests more deeply than ``MAX_DEPTH``, or has a number that decoders may refuse."""
    depth = 0
    for part in _outside_strings(raw, block):
        depths = list(accumulate(map(_DEPTH_CHANGES.__getitem__, part.translate(None, _NO_BRACKETS)), initial=depth))
        if max(depths) > MAX_DEPTH:
            raise BadField(f"Nested deeper than {MAX_DEPTH} levels")
        depth = depths[-1]
        for number in _PERHAPS_TOO_LARGE.finditer(part):
            decode_any(number[0])


def _outside_strings(raw: bytes, block: int) -> Iterator[bytes]:
    """Yields valid JSON without its strings, in parts of about ``block`` bytes.

    A part ends with a comma, so that no number is cut.
    """
    bare = raw.replace(rb"\\", b"").replace(rb"\"", b"")  # each remaining quotation mark begins or ends a string
    start, inside = 0, False
    while start < len(bare):
        end = bare.find(b",", start + block) + 1 or len(bare)
        pieces = bare[start:end].split(b'"')
        yield b"".join(pieces[inside::2])
        inside ^= len(pieces) % 2 == 0
        start = end


@cache
def make_list_decoder(max_values: int) -> Callable[[bytes | msgspec.Raw], list[msgspec.Raw]]:
    """Returns a decoder for a JSON list of at most ``max_values`` values, which stops at the first one beyond.

    It raises ``msgspec.ValidationError`` for a longer list. With a ``max_length``, msgspec would build the whole list
    first.
    """
    fields = [(f"_{number}", msgspec.Raw, None) for number in range(max_values)]
    values = msgspec.defstruct("Values", fields, array_like=True, forbid_unknown_fields=True)
    decode = msgspec.json.Decoder(values).decode

    def decode_list(text: bytes | msgspec.Raw) -> list[msgspec.Raw]:
        return [value for value in msgspec.structs.astuple(decode(text)) if value is not None]

    return decode_list
