"""Reads the parts of signed tokens: JSON objects in base64url, each in one way only.

Lenient readers differ from each other in what they make of a name that stands twice or of characters that are not
base64url. A token that two programs would understand differently is refused here.
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

    Args:
        part: Text in base64url without padding.

    Raises:
        ValueError: It is no object of JSON in UTF-8, or can be understood in more than one way.
    """
    if _BASE64.fullmatch(part) is None:
        raise ValueError("It is not base64url.")
    return read_object(urlsafe_b64decode(part + "=" * (-len(part) % 4)))


def read_object(content: bytes) -> dict[str, Any]:
    """Reads a JSON object.

    Raises:
        ValueError: It is none in UTF-8, has a name twice, a number that is none, or too many objects and lists.
    """
    text = content.decode("utf-8")
    if text.count("{") + text.count("[") > MAX_CONTAINERS:
        raise ValueError(f"It has more than {MAX_CONTAINERS} objects and lists.")
    found = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    if not isinstance(found, dict):
        raise ValueError("It is no object.")  # noqa: TRY004 - of the text, not of an argument
    return found


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("A name stands twice in an object.")
    return found


def _no_constant(text: str) -> None:
    raise ValueError(f"{text} is no number of JSON.")
