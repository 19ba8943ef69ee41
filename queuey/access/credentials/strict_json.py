"""Reads the parts of signed tokens: JSON objects in base64url. Refuses what readers interpret in different ways.

Lenient readers differ in how they read a repeated name, or characters that are not base64url. A token that two programs
would read differently is refused here.
"""

from __future__ import annotations

import json
import re
from base64 import urlsafe_b64decode
from typing import Any

MAX_CONTAINERS = 256
"""Max objects and lists in a part, so that none nests more deeply than the interpreter's stack."""
_BASE64 = re.compile(r"[A-Za-z0-9_-]+")


def read_part(part: str) -> dict[str, Any]:
    """Reads a part of a token.

    Raises:
        ValueError: The part is not a JSON object in UTF-8, or is ambiguous.
    """
    if _BASE64.fullmatch(part) is None:
        raise ValueError("It is not base64url.")
    return read_object(urlsafe_b64decode(part + "=" * (-len(part) % 4)))


def read_object(content: bytes) -> dict[str, Any]:
    """Reads a JSON object.

    Raises:
        ValueError: It is not a JSON object in UTF-8, repeats a name, has a number that JSON does not have, or has too
            many objects and lists.
    """
    text = content.decode("utf-8")
    if text.count("{") + text.count("[") > MAX_CONTAINERS:
        raise ValueError(f"It has more than {MAX_CONTAINERS} objects and lists.")
    value = json.loads(text, object_pairs_hook=_make_object, parse_constant=_refuse_constant)
    if not isinstance(value, dict):
        raise ValueError("It is not an object.")  # noqa: TRY004 - about the text, not an argument
    return value


def _make_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError("An object has a name twice.")
    return fields


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is not a JSON number.")
