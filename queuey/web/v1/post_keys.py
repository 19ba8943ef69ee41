"""The request header ``Idempotency-Key``: a name for a post, so that it can be repeated without storing twice."""

from __future__ import annotations

import re

from queuey.errors import InvalidRequest
from queuey.messages import LONGEST_KEY
from queuey.web import validators
from queuey.web.responses import Header

REPLAYED: Header = ("Idempotent-Replayed", "true")
"""Marks the answer to a post that was carried out before."""

PATTERN = r'[!#-+\--:<-\[\]-~]{1,255}|"(?:[ !#-\[\]-~]|\\["\\]){1,255}"'
"""A bare key has no quotation marks, commas, semicolons and backslashes: of several headers it would be made of all.

A quoted one is a string of structured header fields (RFC 9651). Both name the same key.
"""
_KEY = re.compile(PATTERN)
_ESCAPED = re.compile(r"\\(.)")


def read_key(value: str) -> str:
    """Returns the key of a post, given the value of the header ``Idempotency-Key``.

    Raises:
        InvalidRequest: The key is malformed.
    """
    text = value.strip()
    if _KEY.fullmatch(text) is None:
        rule = f'use 1 to {LONGEST_KEY} visible ASCII characters without " , ; \\, or a quoted string'
        raise InvalidRequest({"idempotency_key": f'"{validators.show(text)}" is not a valid key: {rule}'})
    return _ESCAPED.sub(r"\1", text[1:-1]) if text[0] == '"' else text
